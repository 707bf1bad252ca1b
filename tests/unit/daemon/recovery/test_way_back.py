"""A site that leaves its branch for a snapshot of the same round has its own snapshot until the other is adopted.

The log leads on from that snapshot only (retention has dropped what lies below), so without it there is no way back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.chain import snapshots as snapshot_keeper
from dilocoxd.daemon.chain.ledger import Ledger, genesis_view
from dilocoxd.daemon.chain.owed_work import WorkKeeper, tell_choice
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.snapshots import Retention, SnapshotKeeper, usable_snapshots
from dilocoxd.daemon.recovery.driver import finish_turn_back
from dilocoxd.daemon.site.interface import SiteSettings, SiteStatus
from dilocoxd.ids import Digest, PhaseId, RoundIndex
from dilocoxd.machines.phase.owed_work import OwedWork
from dilocoxd.machines.round.inputs import RecoveryFailed, RecoveryFinished
from dilocoxd.machines.round.outputs import Settlement
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import list_rounds, remove_leftovers
from dilocoxd.telemetry.catalogue import AlertRaised, Event
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.local.outer_worker import SnapshotSaved
from tests.harness.synthetic import fake_site
from tests.unit.daemon.chain.chain_maker import GENESIS, RUN
from tests.unit.daemon.recovery.test_driver import ME, Branch, DiskSite, World

STEPS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")
"""What changes the disk for good; a process that dies does so before one of them."""
FORK, NUMBER, HEIGHT = 3, 5, 6
CUTS_S = 0.5
"""A recovery that waits for nobody has cut the log long before."""
GIVEN = range(9)
"""Our phases in both branches; what only theirs has was given to it before an earlier fork, and is owed at first."""


@pytest.fixture(autouse=True)
def _buffers_end_with_the_test() -> Iterator[None]:
    """What a killed process leaves open ends with it; here it is our process, which may have 1,024 files open."""
    yield
    gc.collect()  # a site closes its buffers when nobody has it


class Killed(BaseException):
    """Nothing catches it, and nothing is written after it."""


class Life:
    """A process that dies before its `last`-th step."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int) -> None:
        self.num_steps = 0
        self._last = last
        for name in STEPS:
            patch.setattr(os, name, self._counted(name, getattr(os, name)))

    @property
    def is_over(self) -> bool:
        return self.num_steps >= self._last

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **rest: Any) -> Any:
            self.num_steps += 1
            if self.is_over:
                raise Killed
            return real(*args, **rest) if name != "fsync" else None

        return step


def world_of(folder: Path, kind: str) -> World:
    """`false`: their tensors are not what was voted on. `withheld`: their payloads behind it are not to be had."""
    folder.mkdir()
    common = Branch().grown(FORK, salt=b"common")
    own = common.grown(HEIGHT - FORK, salt=b"own", peers=("A", "C", "E"))
    theirs = common.grown(3, salt=b"theirs", peers=("B",)).grown(3, salt=b"more", peers=("A", "B", "D"))
    world = World(folder, own, theirs)
    own.write_snapshot(world.snapshots, NUMBER)
    theirs.write_snapshot(world.donor_snapshots, NUMBER, b"x" * 32 if kind == "false" else b"")
    if kind == "withheld":
        world.donor_log.drop_payloads(NUMBER + 1)
    return world


async def started(folder: Path) -> Ledger:
    """As a daemon starts on what the last one left."""
    log = EntryLog(folder / "log", RUN, GENESIS)
    tell = functools.partial(tell_choice, ME, KeptWorkStore(folder / "own"), EventLog(None))
    finish_turn_back(log, Aside(folder / "aside"), folder / "snapshots", tell)
    remove_leftovers(folder / "snapshots")
    site = DiskSite(SiteSettings(folder, "arrival", 1, 1, 0), lambda event: None)
    ledger = Ledger(site, log, genesis_view(RUN, GENESIS, inner_steps=1, lowrank_r=0), ME)
    usable = usable_snapshots(folder / "snapshots", log)
    assert await ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), usable) == []
    return ledger


async def opened(folder: Path, kind: str) -> World:
    world = world_of(folder, kind)
    world.drop_own_payloads(NUMBER)
    usable = usable_snapshots(world.snapshots, world.ledger.log)
    assert await world.ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), usable) == []
    return world


@pytest.mark.parametrize("kind", ["false", "withheld"])
async def test_own_branch_is_rebuilt_when_the_snapshot_of_the_other_is_no_good(tmp_path: Path, kind: str) -> None:
    world = await opened(tmp_path / "site", kind)
    assert isinstance(await world.recover(), RecoveryFailed)
    assert world.ledger.chain.head == world.ledger.log.head == entry_hash(world.own.entries[-1].entry)
    assert world.ledger.chain.state_digest == world.own.digests[-1]
    assert (await started(world.folder)).chain.head == world.ledger.chain.head


async def test_snapshot_that_proved_right_takes_the_place_of_ours(tmp_path: Path) -> None:
    world = await opened(tmp_path / "site", "true")
    assert isinstance(await world.recover(), RecoveryFinished)
    assert sorted(path.name for path in world.snapshots.iterdir()) == [str(NUMBER)]
    assert not list((world.folder / "aside").iterdir())
    assert (await started(world.folder)).chain.head == entry_hash(world.theirs.entries[-1].entry)


def died(run: Callable[[], Any], patch: pytest.MonkeyPatch, last: int) -> bool:
    """Run it in a process that dies before step `last`; False if it came to its end before."""
    with patch.context() as context:
        life = Life(context, last)
        try:
            asyncio.run(run())
        except* Killed:
            assert life.is_over
        return life.is_over


def gave(world: World) -> None:
    """What it gave is kept."""
    for phase in map(PhaseId, GIVEN):
        kept_of(world.folder).keep(KeptWork(phase, int(phase), Digest(bytes(32)), content=((phase, 1),)), [])


def kept_of(folder: Path) -> KeptWorkStore:
    return KeptWorkStore(folder / "own")


@pytest.mark.parametrize("kind", ["false", "withheld", "true"])
def test_process_that_dies_at_any_step_starts_on_a_whole_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It dies a second time while it starts. What it gave is in the chain afterwards, or owed, never neither."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    found = set()
    last, is_going_on = 0, True
    while is_going_on:
        last += 1
        folder = tmp_path / str(last)
        world = asyncio.run(opened(folder, kind))
        gave(world)
        is_going_on = died(world.recover, monkeypatch, last)
        died(lambda folder=folder: started(folder), monkeypatch, 1 + last * 5 % 17)  # type: ignore[misc]
        ledger = asyncio.run(started(folder))
        chain = next(branch for branch in (world.own, world.theirs) if ledger.chain.state_digest in branch.digests[4:])
        assert ledger.chain.head == entry_hash(chain.entries[ledger.chain.height - 1].entry)
        assert chain is not world.own or ledger.chain.height == HEIGHT, "entries of our own branch are lost"
        inside = {c.phase for s in ledger.log.entries() for c in s.entry.contributions if c.peer == ME}
        owed = OwedWork()
        owed.begin(inside, kept_of(folder).contents())
        assert owed.difference({}).keys() == set(GIVEN) - inside
        found.add(chain is world.own)
    assert last > 20 and found == ({True, False} if kind == "true" else {True})


@pytest.mark.parametrize(("settle", "moved"), [(None, [(5, True)]), (Settlement(PhaseId(5), ()), [])])
async def test_entry_that_is_finished_after_a_restart_is_owed_no_more(
    tmp_path: Path, settle: Settlement | None, moved: list[tuple[int, bool]]
) -> None:
    world = world_of(tmp_path / "site", "true")
    work_keeper = WorkKeeper(ME, world.site, KeptWorkStore(tmp_path / "own"), tmp_path / "feedback", EventLog(None))
    await work_keeper.commit(world.own.entries[5].entry, settle)
    assert world.site.moved_work == moved


class WritingSite(DiskSite):
    """Writes the state of a branch; `meanwhile` happens while it does. The feedback still needs the work `needed`."""

    def __init__(
        self, folder: Path, branch: Branch, meanwhile: Callable[[], None], needed: frozenset[PhaseId] | None
    ) -> None:
        super().__init__(SiteSettings(folder, "arrival", 1, 1, 0), lambda event: None)
        self._branch = branch
        self._meanwhile = meanwhile
        self._needed = needed

    def status(self) -> SiteStatus:
        return replace(super().status(), work_needed=self._needed)

    async def write_snapshot(self, directory: str, *, timeout_s: float = 600.0) -> SnapshotSaved:
        self._meanwhile()
        made = Path(directory).parent.parent / "worker"
        self._branch.write_snapshot(made, HEIGHT)
        (made / str(HEIGHT)).rename(directory)
        return SnapshotSaved(0, RoundIndex(HEIGHT), directory, 0, 0.0)


async def kept(
    world: World, meanwhile: Callable[[], None], needed: frozenset[PhaseId] | None = frozenset(), rounds_max: int = 1000
) -> None:
    """A snapshot of the newest own state is due; the keeper does what it does about it."""
    told: list[Event] = []
    retention, work = Retention(1, 1, rounds_max), KeptWorkStore(world.folder / "work")
    keeper = SnapshotKeeper(world.snapshots, retention, lambda: [HEIGHT], work, world.aside, told.append)
    site = WritingSite(world.folder, world.own, meanwhile, needed)
    await keeper._try_to_write(HEIGHT, site, world.ledger.log)
    assert not any(isinstance(event, AlertRaised) for event in told)


async def test_nothing_is_written_or_dropped_between_two_branches(tmp_path: Path) -> None:
    world = await opened(tmp_path / "site", "true")
    log, aside = world.ledger.log, Aside(tmp_path / "site" / "aside")
    aside.keep(log, HEIGHT - 1)
    await kept(world, lambda: None)
    assert list_rounds(world.snapshots) == [NUMBER]
    aside.clear()
    await kept(world, lambda: aside.keep(log, HEIGHT - 1))
    assert list_rounds(world.snapshots) == [NUMBER, HEIGHT], "the one before is not needed any more, but who knows"
    aside.clear()
    await kept(world, lambda: None)
    assert list_rounds(world.snapshots) == [HEIGHT]


async def test_no_payload_is_dropped_of_an_entry_that_is_cut_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention writes the record of an entry anew: of one that was cut meanwhile it would come back, in the place of
    the one that follows there now."""
    world, loop = world_of(tmp_path / "site", "true"), asyncio.get_running_loop()
    await world.open()
    log, has_cut = world.ledger.log, threading.Event()
    read, roll_back = log._read, log.roll_back
    recovering: list[concurrent.futures.Future[Any]] = []

    def recover_meanwhile(index: int) -> Any:
        """Retention has come to the first entry that is to be left."""
        found = read(index)
        if index == FORK and not recovering:
            recovering.append(asyncio.run_coroutine_threadsafe(world.recover(), loop))
            has_cut.wait(CUTS_S)
        return found

    def cut(height: int) -> None:
        roll_back(height)
        has_cut.set()

    monkeypatch.setattr(log, "_read", recover_meanwhile)
    monkeypatch.setattr(log, "roll_back", cut)
    await kept(world, lambda: None, rounds_max=1)
    assert isinstance(await asyncio.wrap_future(recovering[0]), RecoveryFinished)
    assert [signed.entry for signed in log.entries()] == [signed.entry for signed in world.theirs.entries]
    assert EntryLog(world.folder / "log", RUN, GENESIS).verify() == []


async def test_snapshot_of_a_branch_that_was_left_while_it_was_written_replaces_none(tmp_path: Path) -> None:
    world = await opened(tmp_path / "site", "true")
    log = world.ledger.log

    def change() -> None:
        log.roll_back(FORK)
        for signed in world.theirs.entries[FORK:]:
            log.append_bare(signed, fake_site.LENGTHS)
        world.theirs.write_snapshot(world.snapshots, HEIGHT)

    await kept(world, change)
    assert usable_snapshots(world.snapshots, log) == [world.snapshots / str(HEIGHT)]
    assert sorted(path.name for path in world.snapshots.iterdir()) == [str(NUMBER), str(HEIGHT)]


async def test_work_that_the_feedback_has_still_to_get_back_is_kept_however_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork may drop dozens of our entries; they are put back one by one, beside rounds and snapshots of the chain."""
    monkeypatch.setattr(snapshot_keeper, "PAYLOAD_ROUNDS_MIN", 1)
    world = await opened(tmp_path / "site", "true")
    work = KeptWorkStore(world.folder / "work")
    for phase in (1, 2):
        work.keep(KeptWork(PhaseId(phase), 0, Digest(bytes(32))), [])
    await kept(world, lambda: None, needed=None)
    assert work.find(PhaseId(1)) is not None, "while it catches up nobody knows yet what of it is owed"
    await kept(world, lambda: None, needed=frozenset({PhaseId(2)}))
    assert work.find(PhaseId(1)) is None and work.find(PhaseId(2)) is not None
