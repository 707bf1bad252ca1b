"""What a site has of a snapshot is not fetched: its own damaged file, its own wrong state, a download that was torn."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.snapshots import usable_snapshots
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest
from dilocoxd.machines.round.inputs import RecoveryFinished
from dilocoxd.store import snapshots
from dilocoxd.store.snapshots import (
    ANCHOR_NAME,
    CHUNK_BYTES,
    download_directory,
    hash_chunks,
    list_rounds,
    publish,
    read_index,
)
from tests.harness.synthetic import fake_site
from tests.unit.daemon.recovery.test_driver import Branch, World

HEIGHT, NUMBER, CHUNKS = 8, 6, 4
MAPS = PayloadMaps({0: (fake_site.LENGTHS,)})
OTHER = b"\x55" * 32


def state_of(branch: Branch, number: int, *, wrong: int | None = None) -> bytes:
    """Tensors of state `number`, CHUNKS chunks long (the last one short); chunk `wrong` has a bit turned over."""
    data = bytearray(branch.digests[number] * (CHUNK_BYTES // 32) * CHUNKS)[:-999]
    if wrong is not None:
        data[wrong * CHUNK_BYTES + 77] ^= 1
    return bytes(data)


def write_snapshot(branch: Branch, root: Path, number: int, data: bytes) -> None:
    """A snapshot with these tensors and the index of them."""
    branch.write_snapshot(root, number)
    (root / str(number) / ANCHOR_NAME).write_bytes(data)
    files = (hash_chunks(root / str(number) / ANCHOR_NAME),)
    temporary = root / f".{number}.new"
    (root / str(number)).rename(temporary)
    publish(temporary, root / str(number), replace(read_index(temporary), files=files))


def fetched(world: World) -> list[str]:
    """Files of snapshots that were asked for, once for each chunk."""
    return [one for one in world.client.asked if one.endswith(ANCHOR_NAME)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A site at height HEIGHT of the donor's chain; both have snapshot NUMBER, and payloads from there on only."""
    branch = Branch().grown(HEIGHT, salt=b"common")
    made = World(tmp_path, branch, branch)
    for root, log in ((made.donor_snapshots, made.donor_log), (made.snapshots, made.ledger.log)):
        write_snapshot(branch, root, NUMBER, state_of(branch, NUMBER))
        log.drop_payloads(NUMBER)
    return made


def damage(world: World) -> None:
    """A bad sector: the index does not know of it."""
    (world.snapshots / str(NUMBER) / ANCHOR_NAME).write_bytes(state_of(world.own, NUMBER, wrong=2))


def wrong_state(world: World) -> None:
    """It was written of a state of which one bit was another: its own index says so."""
    write_snapshot(world.own, world.snapshots, NUMBER, OTHER + state_of(world.own, NUMBER, wrong=2)[32:])
    path = world.snapshots / str(NUMBER)
    index = replace(read_index(path), state_digest=OTHER.hex(), anchor_sha256=OTHER.hex())
    (path / "index.json").write_bytes(index.encode())


@pytest.mark.parametrize(("spoil", "num_wrong"), [(damage, 1), (wrong_state, 2)])
async def test_only_the_chunks_that_differ_are_fetched(
    world: World, spoil: Callable[[World], None], num_wrong: int
) -> None:
    spoil(world)
    usable = usable_snapshots(world.snapshots, world.ledger.log)
    problems = await world.ledger.open(MAPS, usable, may_fetch=True)
    assert len(problems) == 2 and f"snapshot {usable[0]}" in problems[0] and "cut at 0" in problems[1]
    assert list_rounds(world.snapshots) == [], "others do not get it either"
    assert isinstance(await world.recover(), RecoveryFinished)
    assert world.ledger.chain.state_digest == world.theirs.digests[-1]
    assert len(fetched(world)) == num_wrong
    assert (world.snapshots / str(NUMBER) / ANCHOR_NAME).read_bytes() == state_of(world.own, NUMBER)


async def test_snapshot_whose_log_is_lost_is_not_fetched_at_all(world: World) -> None:
    world.ledger.log.roll_back(0)
    assert await world.ledger.open(MAPS, usable_snapshots(world.snapshots, world.ledger.log), may_fetch=True) == []
    assert isinstance(await world.recover(), RecoveryFinished)
    assert world.ledger.chain.state_digest == world.theirs.digests[-1]
    assert fetched(world) == []


async def test_nothing_is_cut_where_nobody_is_there_to_ask(world: World) -> None:
    damage(world)
    usable = usable_snapshots(world.snapshots, world.ledger.log)
    with pytest.raises(StoreError, match="the log cannot be replayed"):
        await world.ledger.open(MAPS, usable)
    assert world.ledger.log.height == HEIGHT and list_rounds(world.snapshots) == [NUMBER]


async def test_nothing_is_cut_for_a_worker_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(directory: str, **rest: object) -> None:
        raise StoreError("no memory")

    monkeypatch.setattr(world.site, "load_state", fails)
    usable = usable_snapshots(world.snapshots, world.ledger.log)
    with pytest.raises(StoreError, match="no memory"):
        await world.ledger.open(MAPS, usable, may_fetch=True)
    assert world.ledger.log.height == HEIGHT and list_rounds(world.snapshots) == [NUMBER]


async def test_nothing_is_cut_for_what_we_may_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a start as another user: nothing of it is damaged."""

    def refused(*_: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    async def fails(directory: str, **rest: object) -> None:
        raise StoreError("Permission denied")

    monkeypatch.setattr(snapshots, "hash_some_chunks", refused)
    monkeypatch.setattr(world.site, "load_state", fails)
    with pytest.raises(StoreError, match="Permission denied"):
        await world.ledger.open(MAPS, usable_snapshots(world.snapshots, world.ledger.log), may_fetch=True)
    assert world.ledger.log.height == HEIGHT and list_rounds(world.snapshots) == [NUMBER]


async def test_snapshot_that_was_not_needed_is_gone_and_the_older_one_stays(world: World) -> None:
    write_snapshot(world.own, world.snapshots, NUMBER + 1, state_of(world.own, NUMBER + 1, wrong=0))
    (world.snapshots / str(NUMBER + 1) / ANCHOR_NAME).write_bytes(state_of(world.own, NUMBER + 1))
    usable = usable_snapshots(world.snapshots, world.ledger.log)
    (problem,) = await world.ledger.open(MAPS, usable, may_fetch=True)
    assert "damaged in chunk 0" in problem and world.ledger.chain.height == HEIGHT
    assert list_rounds(world.snapshots) == [NUMBER]
    assert not download_directory(world.snapshots, NUMBER + 1).exists(), "it is of no use to anybody"


@pytest.mark.parametrize("older", [NUMBER, None])
async def test_state_that_differs_is_not_made_again_from_a_snapshot_of_it(tmp_path: Path, older: int | None) -> None:
    """The bit turned over before the snapshot was written, and no entry follows that would say so."""
    branch = Branch().grown(HEIGHT, salt=b"common")
    world = World(tmp_path, branch, branch)
    if older is not None:
        write_snapshot(branch, world.snapshots, older, state_of(branch, older))
        world.ledger.log.drop_payloads(older)
    digests = [*branch.digests[:-1], Digest(OTHER)]
    replace(branch, digests=digests).write_snapshot(world.snapshots, HEIGHT)
    await world.ledger.open(MAPS, usable_snapshots(world.snapshots, world.ledger.log))
    assert world.ledger.chain.state_digest == OTHER
    assert isinstance(await world.recover(is_rebuild=True), RecoveryFinished)
    assert world.ledger.chain.state_digest == branch.digests[-1]
    assert list_rounds(world.snapshots) == ([older] if older is not None else []), "the wrong one is gone"
