"""Recovery believes a better branch only as far as it leads: what turns out to be false or is not to be had is left."""

import asyncio
import hashlib
import os
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.chain.owed_work import WorkKeeper
from dilocoxd.daemon.peers.serving import Library
from dilocoxd.daemon.recovery.adoption import read_adopted
from dilocoxd.daemon.recovery.driver import RecoveryDriver, RecoveryParts, finish_turn_back
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.recovery.rollback import Choice
from dilocoxd.machines.round.inputs import Event, RecoveryFailed, RecoveryFinished
from dilocoxd.machines.round.outputs import InFlight, StartRecovery
from dilocoxd.store.admission import write_checkpoint
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.swarm.streams.fetch import OnBytes
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.harness.synthetic import fake_site
from tests.unit.daemon.chain.chain_maker import GENESIS, KEYS, RUN, chain, signed_by_all
from tests.unit.daemon.chain.test_ledger import ME, opened
from tests.unit.daemon.recovery.adoptions import adoption_of
from tests.unit.daemon.recovery.test_chain_fetch import ignored

OTHER = PeerId("B")
LIMITS = RoundLimits(tokens_max=1000)


def data_of(index: int, salt: bytes) -> bytes:
    return (hashlib.sha256(index.to_bytes(8, "big") + salt).digest() * 125)[: fake_site.TOTAL]


def branch(
    length: int,
    salt: bytes = b"",
    *,
    tokens: int = 10,
    lies_at: int | None = None,
    steers_at: int | None = None,
    peers: tuple[str, ...] = ("B",),
) -> list[SignedEntry]:
    """A chain on the fake site's bits; entry `lies_at` is voted for on a state that never was, entry `steers_at`
    announces another H than the schedule wants."""
    entries: list[SignedEntry] = []
    digest, parent = fake_site.GENESIS, GENESIS
    own, other = chain(length), chain(length, tokens=tokens, peers=peers)
    for signed in [own[0], *(other if salt else own)[1:]]:
        index = signed.entry.round
        data = data_of(index, salt if index else b"")
        parts = (data[: fake_site.LENGTHS[0]], data[fake_site.LENGTHS[0] :])
        hashes = tuple(hashlib.sha256(part).digest() for part in parts)
        said = Digest(b"x" * 32) if index == lies_at else digest
        voters = tuple(c.peer for one in entries[-1:] for c in one.entry.contributions)
        entry = replace(signed.entry, parent=parent, state_digest=said, result_hashes=hashes, parent_voters=voters)
        entry = replace(entry, next_inner_steps=7) if index == steers_at else entry
        parent, digest = entry_hash(entry), Digest(hashlib.sha256(digest + data).digest())
        entries.append(signed_by_all(entry))
    return entries


def write(log: EntryLog, entries: list[SignedEntry], salt: bytes) -> None:
    for signed in entries:
        fd = os.memfd_create("payload")
        os.pwrite(fd, data_of(signed.entry.round, salt if signed.entry.round else b""), 0)
        log.append(signed, PayloadSource(fd, 0, fake_site.LENGTHS))
        os.close(fd)


def lone_history(length: int) -> list[SignedEntry]:
    """As heavy as the caps allow, by one key, from genesis on."""
    digest, parent, entries = fake_site.GENESIS, GENESIS, []
    for signed in chain(length, peers=("B",), tokens=LIMITS.tokens_max):
        data = data_of(signed.entry.round, b"fork" if signed.entry.round else b"")
        parts = (data[: fake_site.LENGTHS[0]], data[fake_site.LENGTHS[0] :])
        hashes = tuple(hashlib.sha256(part).digest() for part in parts)
        entries.append(signed_by_all(replace(signed.entry, parent=parent, state_digest=digest, result_hashes=hashes)))
        parent, digest = entry_hash(entries[-1].entry), Digest(hashlib.sha256(digest + data).digest())
    return entries


class Client:
    """Fetches from libraries in this process; `missing` resources are refused."""

    def __init__(self, libraries: dict[PeerId, Library], missing: tuple[str, ...] = ()) -> None:
        self.libraries = libraries
        self.missing = missing
        self.counts = {"bytes_received": 0}
        self.blamed: list[tuple[PeerId, str]] = []

    def on_bad(self, peer: PeerId, error: WireError) -> None:
        self.blamed.append((peer, error.code))

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int, on_bytes: OnBytes = ignored) -> bytes:
        if resource in self.missing:
            raise PeerError(f"{peer} does not have {resource}")
        served = await self.libraries[peer].open(peer, resource)
        try:
            return os.pread(served.region.fd, served.region.length, served.region.offset)
        finally:
            served.close()

    async def fetch_region(
        self, peer: PeerId, resource: str, target: Region, *, offset: int = 0, on_bytes: OnBytes = ignored
    ) -> None:
        os.pwrite(target.fd, await self.fetch_bytes(peer, resource, bytes_max=1 << 20), target.offset)


def no_more(*_: Any) -> None:
    """Nobody listens."""


class Bench:
    """A site with entries of its own, and one peer that serves another branch, as a rule from entry 1 on."""

    def __init__(self, folder: Path, num_own: int = 3, limits: RoundLimits = LIMITS) -> None:
        self.folder = folder
        self.limits = limits
        self.own = branch(num_own)

    async def start(self, theirs: list[SignedEntry], missing: tuple[str, ...] = ()) -> None:
        (self.folder / "site").mkdir()
        self.ledger, self.site = await opened(self.folder, [])
        write(self.ledger.log, self.own, b"")
        await self.ledger.rebuild("")
        log = EntryLog(self.folder / "theirs", RUN, GENESIS)
        write(log, theirs, b"fork")
        self.client = Client({OTHER: Library(b"", log, self.folder / "none")}, missing)
        events = EventLog(None)
        self.told: list[dict[str, object]] = []
        events.listen(self.told.append)
        self.aside = Aside(self.folder / "aside")
        self.driver = RecoveryDriver(
            RecoveryParts(
                work_keeper=WorkKeeper(
                    ME, self.site, KeptWorkStore(self.folder / "work"), self.folder / "feedback", events
                ),
                ledger=self.ledger,
                client=self.client,  # type: ignore[arg-type]
                keys=KEYS,
                limits=self.limits,
                snapshots=self.folder / "snapshots",
                aside=self.aside,
                events=events,
                moved=no_more,
                took=no_more,
                adoption=adoption_of(self.folder, self.ledger.log),
            )
        )

    async def recover(self, in_flight: InFlight | None = None, *, takes_back: int | None = None) -> Event:
        answer: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        order = StartRecovery((OTHER,), RoundIndex(9), "test", False, in_flight)
        if takes_back is not None:
            reverted = frozenset({entry_hash(self.own[takes_back].entry)})
            order = replace(order, takes_back=RoundIndex(takes_back), reverted=reverted)
        self.driver.take(order, answer.set_result)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.driver.run())
            event = await answer
            task.cancel()
        return event

    def heads(self) -> list[Digest]:
        log = self.ledger.log
        return [log.hash_at(height) for height in range(1, log.height + 1)]

    def is_own(self) -> bool:
        is_applied = self.ledger.chain.head == self.ledger.log.head and self.ledger.state is not None
        return is_applied and self.heads() == [entry_hash(signed.entry) for signed in self.own]


async def test_heavier_branch_is_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=100))
    event = await bench.recover()
    assert isinstance(event, RecoveryFinished) and event.chain.height == 4
    assert not bench.aside.entries()


@pytest.mark.parametrize("has_majority_quorum", [False, True])
@pytest.mark.parametrize("final_depth", [0, 64])
async def test_lone_history_from_genesis_is_taken_only_without_final_entries(
    tmp_path: Path, final_depth: int, has_majority_quorum: bool
) -> None:
    """TRUST C2: 20 sound entries of one key, against a site at height 21. R28."""
    limits = replace(LIMITS, final_depth=final_depth, has_majority_quorum=has_majority_quorum)
    bench = Bench(tmp_path, 21, limits)
    lone = lone_history(20)
    await bench.start(lone)
    event = await bench.recover()
    assert isinstance(event, RecoveryFinished)
    assert bench.is_own() if final_depth else bench.heads() == [entry_hash(signed.entry) for signed in lone]


async def test_operators_branch_is_taken_by_the_driver_though_it_is_lighter(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 21, replace(LIMITS, final_depth=3, checkpoint=(21, Digest(b"of the link".ljust(32)))))
    theirs = branch(4, b"fork", tokens=1)
    await bench.start(theirs)
    await bench.recover()
    assert bench.is_own()
    adoption = bench.driver._parts.adoption
    write_checkpoint(bench.folder / "adopted", 3, entry_hash(theirs[2].entry))
    adoption.place = read_adopted(bench.folder / "adopted")
    event = await bench.recover()
    assert isinstance(event, RecoveryFinished) and event.chain.head == entry_hash(theirs[3].entry)
    assert adoption.is_there and not bench.aside.entries()


async def test_operators_branch_is_followed_further_though_it_lacks_the_checkpoint_of_the_link(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 3, replace(LIMITS, checkpoint=(30, Digest(b"of the link".ljust(32)))))
    theirs = branch(6, b"fork", tokens=100)
    await bench.start(theirs)
    bench.ledger.log.roll_back(1)
    write(bench.ledger.log, theirs[1:4], b"fork")
    await bench.ledger.rebuild("")
    assert isinstance(await bench.recover(), RecoveryFailed)
    adoption = bench.driver._parts.adoption
    adoption.place = (4, entry_hash(theirs[3].entry))
    event = await bench.recover()
    assert isinstance(event, RecoveryFinished) and event.chain.height == 6


@pytest.mark.parametrize("missing", [("payload/1",), ("payload/2",)])
async def test_branch_whose_payloads_nobody_has_is_left_again(tmp_path: Path, missing: tuple[str, ...]) -> None:
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=15), missing)
    event = await bench.recover()
    assert isinstance(event, RecoveryFailed)
    left, back = (told for told in bench.told if told["event"] == "fork.resolved")
    assert left["dropped"] == back["kept"] and back["is_rolled_back"] == bool(back["dropped"])
    assert bool(back["dropped"]) == (missing == ("payload/2",)), "what was taken of the other is lost, if it was any"
    assert bench.is_own(), "an acknowledged entry is lost to a heavier chain only, not to the promise of one"


async def test_part_of_a_branch_that_is_better_than_ours_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=100), ("payload/2",))
    event = await bench.recover()
    assert isinstance(event, RecoveryFinished) and event.chain.height == bench.ledger.log.height == 2
    assert bench.ledger.chain == event.chain


@pytest.mark.parametrize("lies_at", [1, 2])
async def test_branch_on_a_state_that_never_was_is_left_again(tmp_path: Path, lies_at: int) -> None:
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=15, lies_at=lies_at))
    assert isinstance(await bench.recover(), RecoveryFailed)
    assert bench.is_own()


async def test_contribution_that_was_settled_on_the_way_is_said_to_be_settled(tmp_path: Path) -> None:
    """L15.4: the worker has counted it, and kept work owes it. The machine offered it further, and ended with the next
    phase."""
    bench = Bench(tmp_path)
    theirs = branch(4, b"fork", tokens=15, lies_at=2, peers=(ME, "B"))
    await bench.start(theirs)
    ours = next(one for one in theirs[1].entry.contributions if one.peer == ME)
    event = await bench.recover(InFlight(ours, None, ()))
    assert isinstance(event, RecoveryFailed) and event.settled_phase == ours.phase
    assert bench.is_own()


async def test_forged_branch_is_held_against_who_serves_it(tmp_path: Path) -> None:
    """TRUST C1: an entry names who did not offer. A branch that keeps other caps than ours is refused, and no lie."""
    bench = Bench(tmp_path)
    theirs = branch(4, b"fork", tokens=15)
    offers = (replace(theirs[2].offers[0], value=b"x"),)
    await bench.start([*theirs[:2], replace(theirs[2], offers=offers), theirs[3]])
    assert isinstance(await bench.recover(), RecoveryFailed)
    assert bench.is_own() and bench.client.blamed == [(OTHER, "bad_offer")]
    bench.driver._parts = replace(bench.driver._parts, limits=replace(LIMITS, tokens_max=11))
    assert isinstance(await bench.recover(), RecoveryFailed)
    assert len(bench.client.blamed) == 1


@pytest.mark.parametrize("steers_at", [1, 2])
async def test_branch_that_announces_what_no_schedule_wants_is_left_again(tmp_path: Path, steers_at: int) -> None:
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=15, steers_at=steers_at))
    event = await bench.recover()
    assert isinstance(event, RecoveryFailed) and event.unconfirmed == (OTHER,)
    assert bench.is_own(), "one liar's entry would else end every daemon, and again at each start"


async def test_branch_that_does_not_decode_is_left_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=15))
    apply = bench.site.apply_entry

    def refuse(committed: Any) -> Coroutine[Any, Any, Any]:
        data = Path(committed.path).read_bytes() if committed.path else b""
        if data.endswith(data_of(2, b"fork")):
            raise RequestRefused("bad_payload", "segment 0 does not decode")
        return apply(committed)

    monkeypatch.setattr(bench.site, "apply_entry", refuse)
    assert isinstance(await bench.recover(), RecoveryFailed)
    assert bench.is_own()


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_process_that_dies_between_two_branches_comes_back_on_the_better_one(tmp_path: Path, num_taken: int) -> None:
    log, aside, own = EntryLog(tmp_path / "log", RUN, GENESIS), Aside(tmp_path / "aside"), branch(3)
    write(log, own, b"")
    aside.keep(log, 1)
    log.roll_back(1)
    theirs = branch(4, b"fork", tokens=15)
    write(log, theirs[1 : 1 + num_taken], b"fork")
    told: list[Choice] = []
    finish_turn_back(log, aside, tmp_path / "snapshots", told.append)
    expected = own if num_taken < 3 else theirs
    left = theirs[1 : 1 + num_taken] if num_taken < 3 else own[1:]
    assert [choice.left for choice in told] == [tuple(signed.entry for signed in left)]
    assert [log.hash_at(height) for height in range(1, log.height + 1)] == [entry_hash(s.entry) for s in expected]
    assert not log.verify() and not aside.entries()


@pytest.mark.parametrize("takes_back", [None, 1], ids=["fork", "taken back"])
async def test_saved_feedback_is_gone_before_an_entry_that_was_taken_back_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_back: int | None
) -> None:
    """R29.7. Whoever starts while the others take it back, or dies before it has saved again, would load it: it may
    hold what spoiled the model."""
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=100))
    feedback, log = tmp_path / "feedback", bench.ledger.log
    feedback.write_bytes(b"of the state that was spoiled")
    found: list[bool] = []
    roll_back = log.roll_back

    def note(height: RoundIndex) -> None:
        found.append(feedback.exists())
        roll_back(height)

    monkeypatch.setattr(log, "roll_back", note)
    assert isinstance(await bench.recover(takes_back=takes_back), RecoveryFinished)
    assert found[0] is (takes_back is None) and feedback.exists() is (takes_back is None)


async def test_what_was_formed_since_the_recovery_began_is_given_up_with_an_entry_that_was_taken_back(
    tmp_path: Path,
) -> None:
    """It has what the feedback owed of the lie, and the round machine hears of it only behind the recovery. R29.7."""
    bench = Bench(tmp_path)
    await bench.start(branch(4, b"fork", tokens=100))
    bench.site._in_flight = PhaseId(77)
    assert isinstance(await bench.recover(takes_back=1), RecoveryFinished)
    assert bench.site.status().in_flight is None


def test_process_that_dies_while_it_leaves_what_was_taken_back_does_not_come_back_to_it(tmp_path: Path) -> None:
    log, aside, own = EntryLog(tmp_path / "log", RUN, GENESIS), Aside(tmp_path / "aside"), branch(3)
    write(log, own, b"")
    aside.keep(log, 1)
    log.roll_back(1)
    theirs = branch(2, b"fork", tokens=1)
    write(log, theirs[1:], b"fork")
    told: list[Choice] = []
    reverted = frozenset([entry_hash(own[1].entry)])
    finish_turn_back(log, aside, tmp_path / "snapshots", told.append, None, reverted)
    assert log.head == entry_hash(theirs[-1].entry) and not log.verify() and not aside.entries()
    assert not told[0].goes_back and not told[0].dropped(PeerId(own[1].entry.contributions[0].peer))


def test_entries_that_no_snapshot_skips_yet_are_not_a_better_branch(tmp_path: Path) -> None:
    log, aside, own = EntryLog(tmp_path / "log", RUN, GENESIS), Aside(tmp_path / "aside"), branch(3)
    write(log, own, b"")
    aside.keep(log, 1)
    log.roll_back(1)
    for signed in branch(4, b"fork", tokens=100)[1:3]:
        log.append_bare(signed, fake_site.LENGTHS)
    finish_turn_back(log, aside, tmp_path / "snapshots", no_more)
    assert log.head == entry_hash(own[-1].entry), "the better branch was never got: its entries would be cut at start"
    assert not log.verify() and not aside.entries()


@pytest.mark.parametrize("other", [b"", b"other"], ids=["lost", "another"])
def test_branch_that_does_not_continue_the_log_is_not_put_back(tmp_path: Path, other: bytes) -> None:
    log, aside = EntryLog(tmp_path / "log", RUN, GENESIS), Aside(tmp_path / "aside")
    write(log, branch(3), b"")
    aside.keep(log, 2)
    moved = EntryLog(tmp_path / "moved", RUN, GENESIS)  # the operator moved the log away, or put another one there
    found = branch(2, other) if other else []
    told: list[Choice] = []
    write(moved, found, other)
    finish_turn_back(moved, aside, tmp_path / "snapshots", told.append)
    assert moved.height == len(found) and not moved.verify() and not aside.entries() and not told
