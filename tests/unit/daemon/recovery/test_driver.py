"""Catching up and healing a fork when payloads are gone: on from a snapshot, or not at all and nothing is changed."""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dilocoxd.daemon.chain.ledger import Ledger, genesis_view
from dilocoxd.daemon.chain.owed_work import WorkKeeper
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.snapshots import usable_snapshots
from dilocoxd.daemon.peers.serving import Library
from dilocoxd.daemon.recovery.driver import RecoveryDriver, RecoveryParts
from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.errors import PeerError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.double_votes import DoubleVotes
from dilocoxd.machines.round.inputs import NEWEST_READ, Event, RecoveryFailed, RecoveryFinished
from dilocoxd.machines.round.outputs import ExtendRecovery, StartRecovery
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.store.snapshots import ANCHOR_NAME, SnapshotIndex, hash_chunks, publish, stamp_chain_head, verify
from dilocoxd.swarm.streams.fetch import FetchClient, OnBytes, Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import SignedEntry, entry_hash
from dilocoxd.wire.local.outer_worker import StateReady
from tests.harness.synthetic import fake_site
from tests.unit.daemon.chain.chain_maker import GENESIS, KEYS, RUN, chain, signed_by_all
from tests.unit.daemon.recovery.adoptions import adoption_of
from tests.unit.daemon.recovery.test_chain_fetch import ignored

ME, DONOR = PeerId("A"), PeerId("D")
LIMITS = RoundLimits(tokens_max=100, inner_steps_max=100)


class LibraryClient(FetchClient):
    """Answers from the donor's library in this process; the real downloader runs over it."""

    def __init__(self, library: Library) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.library = library
        self.asked: list[str] = []
        self.bad: list[str] = []
        self.on_bad = lambda peer, error: self.bad.append(f"{peer} {error.code}")

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int, on_bytes: OnBytes = ignored) -> bytes:
        self.asked.append(resource)
        served = await self.library.open(peer, resource)
        try:
            return os.pread(served.region.fd, served.region.length, served.region.offset)
        finally:
            served.close()

    async def fetch_region(
        self, peer: PeerId, resource: str, target: Region, *, offset: int = 0, on_bytes: OnBytes = ignored
    ) -> None:
        data = await self.fetch_bytes(peer, resource, bytes_max=1 << 30)
        os.pwrite(target.fd, data[offset : offset + target.length], target.offset)


class DiskSite(fake_site.FakeSite):
    """Loads the snapshots that `Branch.write_snapshot` writes: the state is what lies in the file of the tensors."""

    async def load_state(
        self, directory: str, *, settles: PhaseId | None = None, is_included: bool = False, forgets: bool = False
    ) -> StateReady:
        if directory:
            index = verify(Path(directory))
            digest = (Path(directory) / ANCHOR_NAME).read_bytes()[:32]
            self.snapshots[directory] = (RoundIndex(index.round), Digest(digest))
        return await super().load_state(directory, settles=settles, is_included=is_included, forgets=forgets)


@dataclass
class Branch:
    """Entries with true digests for the fake site, and their payloads."""

    entries: list[SignedEntry] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=lambda: [fake_site.GENESIS])

    def grown(self, count: int, *, salt: bytes, peers: tuple[str, ...] = ("A", "B")) -> "Branch":
        """This branch with `count` more entries."""
        made = Branch(list(self.entries), list(self.payloads), list(self.digests))
        for _ in range(count):
            index = len(made.entries)
            parent = entry_hash(made.entries[-1].entry) if made.entries else GENESIS
            before = tuple(c.peer for one in made.entries[-1:] for c in one.entry.contributions)
            (signed,) = chain(1, start=index, parent=parent, peers=peers, before=before)
            data = (hashlib.sha256(salt + index.to_bytes(8, "big")).digest() * 125)[: fake_site.TOTAL]
            parts = (data[: fake_site.LENGTHS[0]], data[fake_site.LENGTHS[0] :])
            hashes = tuple(hashlib.sha256(part).digest() for part in parts)
            entry = replace(signed.entry, state_digest=made.digests[-1], result_hashes=hashes)
            made.entries.append(signed_by_all(entry))
            made.payloads.append(data)
            made.digests.append(Digest(hashlib.sha256(made.digests[-1] + data).digest()))
        return made

    def write(self, log: EntryLog) -> None:
        """All of it into an empty log."""
        for signed, data in zip(self.entries, self.payloads, strict=True):
            fd = os.memfd_create("payload")
            os.pwrite(fd, data, 0)
            log.append(signed, PayloadSource(fd, 0, fake_site.LENGTHS))
            os.close(fd)

    def write_snapshot(self, root: Path, number: int, state: bytes = b"") -> None:
        """Snapshot of state `number`; with `state`, its tensors are not those that its index names."""
        temporary = root / f".{number}.new"
        temporary.mkdir(parents=True)
        (temporary / ANCHOR_NAME).write_bytes((state or self.digests[number]) * 20)
        head = entry_hash(self.entries[number - 1].entry).hex()
        files = (hash_chunks(temporary / ANCHOR_NAME),)
        digest = self.digests[number].hex()
        publish(temporary, root / str(number), SnapshotIndex(RUN, number, digest, digest, head, files))


@dataclass
class World:
    """One recovering site and one donor."""

    folder: Path
    own: Branch
    theirs: Branch

    def __post_init__(self) -> None:
        donor = self.folder / "donor"
        self.donor_log = EntryLog(donor / "log", RUN, GENESIS)
        self.theirs.write(self.donor_log)
        self.donor_snapshots = donor / "snapshots"
        self.client = LibraryClient(Library(b"", self.donor_log, self.donor_snapshots))
        settings = SiteSettings(self.folder, "arrival", 1, 1, 0)
        self.site = DiskSite(settings, lambda event: None)
        log = EntryLog(self.folder / "log", RUN, GENESIS)
        self.own.write(log)
        self.ledger = Ledger(self.site, log, genesis_view(RUN, GENESIS, inner_steps=1, lowrank_r=0), ME)
        self.snapshots = self.folder / "snapshots"
        self.aside = Aside(self.folder / "aside")

    async def open(self) -> None:
        """As a daemon does at start."""
        assert await self.ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), []) == []

    def make_driver(self) -> RecoveryDriver:
        """As a daemon does at start, too."""
        events = EventLog(self.folder / "events.jsonl", level="error")
        work_keeper = WorkKeeper(ME, self.site, KeptWorkStore(self.folder / "own"), self.folder / "feedback", events)
        parts = RecoveryParts(
            work_keeper, self.ledger, self.client, KEYS, LIMITS, self.snapshots, events, lambda: None,
            lambda signed: None, self.aside, adoption_of(self.folder, self.ledger.log),
        )  # fmt: skip
        return RecoveryDriver(parts)

    async def recover(self, *, is_rebuild: bool = False) -> Event:
        """One ordered recovery."""
        self.driver = self.make_driver()
        return await self.driver._recover(self.order(is_rebuild=is_rebuild))

    def order(self, *, is_rebuild: bool = False) -> StartRecovery:
        return StartRecovery((DONOR,), RoundIndex(len(self.theirs.entries)), "they are ahead", is_rebuild, None)

    def drop_own_payloads(self, before: int) -> None:
        """As retention, or a start from a snapshot, leaves it."""
        self.ledger.log.drop_payloads(before)


def heads(entries: Sequence[SignedEntry]) -> Digest:
    return entry_hash(entries[-1].entry)


async def test_payloads_that_nobody_has_any_more_are_skipped_by_a_snapshot(tmp_path: Path) -> None:
    common = Branch().grown(4, salt=b"common")
    theirs = common.grown(8, salt=b"theirs")
    world = World(tmp_path, common, theirs)
    theirs.write_snapshot(world.donor_snapshots, 10)
    world.donor_log.drop_payloads(9)
    await world.open()
    assert isinstance(await world.recover(), RecoveryFinished)
    assert world.ledger.chain.head == heads(theirs.entries)
    assert world.ledger.chain.state_digest == theirs.digests[-1]
    assert not world.ledger.log.has_payload(5)
    assert world.ledger.log.has_payload(11)


@pytest.mark.parametrize("stamp", [b"", b"x" * 32], ids=["none", "wrong"])
async def test_snapshot_that_its_donor_stamped_wrongly_leads_over_the_next_start(tmp_path: Path, stamp: bytes) -> None:
    common = Branch().grown(4, salt=b"common")
    theirs = common.grown(8, salt=b"theirs")
    world = World(tmp_path, common, theirs)
    theirs.write_snapshot(world.donor_snapshots, 10)
    stamp_chain_head(world.donor_snapshots / "10", stamp)
    world.donor_log.drop_payloads(9)
    await world.open()
    assert isinstance(await world.recover(), RecoveryFinished)
    usable = usable_snapshots(world.snapshots, world.ledger.log)
    assert await world.ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), usable) == []
    assert world.ledger.log.height == len(theirs.entries)


async def test_payload_that_nobody_has_and_no_snapshot_is_a_failure_with_the_reason(tmp_path: Path) -> None:
    common = Branch().grown(4, salt=b"common")
    world = World(tmp_path, common, common.grown(3, salt=b"theirs"))
    world.donor_log.drop_payloads(6)
    await world.open()
    failed = await world.recover()
    assert isinstance(failed, RecoveryFailed)
    assert "payload of entry 4" in failed.reason
    assert world.ledger.chain.head == heads(common.entries)


async def test_source_that_gives_nothing_is_named_in_the_text_and_in_an_event(tmp_path: Path) -> None:
    common = Branch().grown(4, salt=b"common")
    world = World(tmp_path, common, common.grown(3, salt=b"theirs"))
    world.donor_log.drop_payloads(6)
    honest = world.client.library.open

    async def silent(peer: PeerId, resource: str) -> Served:
        if resource == "snapshots":
            raise PeerError("nothing came")
        return await honest(peer, resource)

    world.client.library.open = silent  # type: ignore[method-assign]
    await world.open()
    assert isinstance(await world.recover(), RecoveryFailed)
    assert world.driver.text.endswith(f"; late, others are asked: {DONOR}")
    (event,) = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if "source.late" in line]
    assert DONOR in event and "nothing came" in event


async def test_r22_who_is_added_before_and_while_a_recovery_runs_is_asked_and_nobody_else(tmp_path: Path) -> None:
    common = Branch().grown(4, salt=b"common")
    world = World(tmp_path, common, common.grown(3, salt=b"theirs"))
    early, meanwhile, late = (PeerId(name) for name in ("E", "M", "L"))
    driver, honest, asked = world.make_driver(), world.client.library.open, list[PeerId]()
    told: asyncio.Queue[Event] = asyncio.Queue()

    def add(peer: PeerId) -> None:
        driver.take(ExtendRecovery((peer,)), told.put_nowait)

    async def serve(peer: PeerId, resource: str) -> Served:
        asked.append(peer)
        if peer == early:
            add(meanwhile)
        if peer != meanwhile:
            raise PeerError("gone")
        return await honest(peer, resource)

    world.client.library.open = serve  # type: ignore[method-assign]
    await world.open()
    async with asyncio.TaskGroup() as group:
        driver.take(world.order(), told.put_nowait)
        add(early)
        task = group.create_task(driver.run())
        found = await told.get()
        add(late)
        driver.take(world.order(), told.put_nowait)
        assert isinstance(await told.get(), RecoveryFailed)
        task.cancel()
    assert isinstance(found, RecoveryFinished) and found.added == (early, meanwhile)
    assert list(dict.fromkeys(asked)) == [DONOR, early, meanwhile]


async def test_fork_below_what_our_disk_can_rebuild_is_left_by_their_snapshot(tmp_path: Path) -> None:
    common = Branch().grown(3, salt=b"common")
    own = common.grown(3, salt=b"own", peers=("A",))
    theirs = common.grown(5, salt=b"theirs")
    world = World(tmp_path, own, theirs)
    theirs.write_snapshot(world.donor_snapshots, 7)
    own.write_snapshot(world.snapshots, 5)
    await world.open()
    world.drop_own_payloads(5)
    assert isinstance(await world.recover(), RecoveryFinished)
    assert world.ledger.chain.head == heads(theirs.entries)
    assert world.ledger.chain.state_digest == theirs.digests[-1]


async def test_fork_that_can_neither_be_rebuilt_nor_skipped_changes_nothing(tmp_path: Path) -> None:
    common = Branch().grown(3, salt=b"common")
    own = common.grown(2, salt=b"own", peers=("A",))
    world = World(tmp_path, own, common.grown(4, salt=b"theirs"))
    own.write_snapshot(world.snapshots, 5)
    await world.open()
    world.drop_own_payloads(5)
    world.donor_log.drop_payloads(3)
    failed = await world.recover()
    assert isinstance(failed, RecoveryFailed)
    assert "nobody offers a snapshot of the better chain, or the payload of entry 0: " in failed.reason
    assert world.ledger.chain.head == heads(own.entries)
    assert world.ledger.log.height == 5


async def test_fork_that_our_disk_cannot_rebuild_is_rebuilt_with_payloads_of_others(tmp_path: Path) -> None:
    common = Branch().grown(3, salt=b"common")
    own, theirs = common.grown(2, salt=b"own", peers=("A",)), common.grown(4, salt=b"theirs")
    world = World(tmp_path, own, theirs)
    own.write_snapshot(world.snapshots, 5)
    await world.open()
    world.drop_own_payloads(5)
    finished = await world.recover()
    assert isinstance(finished, RecoveryFinished)
    assert world.ledger.chain.head == heads(theirs.entries)
    assert world.ledger.chain.state_digest == theirs.digests[-1]
    assert world.ledger.log.verify() == []
    assert all(world.ledger.log.has_payload(index) for index in range(7))


@pytest.mark.parametrize("alone", [2, NEWEST_READ + 4])
async def test_who_goes_on_from_an_old_disk_is_named_however_long_it_was_alone(tmp_path: Path, alone: int) -> None:
    """Its votes contradict each other where the branches part, and nowhere else."""
    common = Branch().grown(3, salt=b"common")
    lost, anew = common.grown(1, salt=b"lost", peers=("B",)), common.grown(alone, salt=b"anew", peers=("B",))
    world = World(tmp_path, lost, anew)
    await world.open()
    heard = DoubleVotes()
    heard.read(world.ledger.chain, lost.entries, KEYS)
    finished = await world.recover()
    assert isinstance(finished, RecoveryFinished)
    assert finished.chain.head == heads(anew.entries)
    heard.read(finished.chain, finished.newest, KEYS)
    assert {peer: evidence.round for peer, evidence in heard.proofs.items()} == {PeerId("B"): 3}


async def test_who_only_catches_up_compares_the_newest_entries(tmp_path: Path) -> None:
    common = Branch().grown(3, salt=b"common")
    world = World(tmp_path, common, common.grown(20, salt=b"theirs"))
    await world.open()
    finished = await world.recover()
    assert isinstance(finished, RecoveryFinished)
    assert [signed.entry.round for signed in finished.newest] == list(range(23 - NEWEST_READ, 23))
