"""What old payloads are kept for (replay, live peers within limits, short absences), and which snapshots are used."""

import asyncio
import contextlib
import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dilocoxd.daemon.chain.snapshots import (
    PAYLOAD_ROUNDS_MIN,
    Retention,
    SnapshotKeeper,
    payloads_needed_from,
    usable_snapshots,
)
from dilocoxd.daemon.site.interface import SiteLayout
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.ids import Digest, RoundIndex, RunId
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.durable import DiskFull
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import ANCHOR_NAME, SnapshotFile, SnapshotIndex, list_rounds, publish
from dilocoxd.telemetry.alerts import AlertRaised
from dilocoxd.telemetry.catalogue import Event
from dilocoxd.wire.local.outer_worker import SnapshotSaved
from tests.unit.daemon.chain.chain_maker import GENESIS, LENGTHS, RUN, chain

LIMIT = 1000


def test_nothing_is_dropped_before_a_snapshot_makes_it_needless() -> None:
    assert payloads_needed_from(500, [], [500], LIMIT) == 0
    assert payloads_needed_from(500, [40, 400], [500], LIMIT) == 40


def test_newest_payloads_stay_for_those_who_were_away_for_a_moment() -> None:
    assert payloads_needed_from(500, [490, 500], [500], LIMIT) == 500 - PAYLOAD_ROUNDS_MIN
    assert payloads_needed_from(10, [10], [], LIMIT) == 0


def test_live_peer_keeps_what_it_needs_but_not_for_ever() -> None:
    assert payloads_needed_from(5000, [4990, 5000], [4998, 4200], LIMIT) == 4200
    assert payloads_needed_from(5000, [4990, 5000], [4998, 3], LIMIT) == 4000


def test_limit_in_bytes_is_the_tighter_one_but_own_replay_goes_first() -> None:
    limits = Retention(10, 2, LIMIT, 5_000)
    assert limits.rounds_max(100) == 50 and limits.rounds_max(1) == LIMIT and limits.rounds_max(0) == LIMIT
    assert Retention(10, 2, LIMIT).rounds_max(100) == LIMIT
    assert payloads_needed_from(500, [490, 500], [500], 50) == 450
    assert payloads_needed_from(500, [490, 500], [3], 5) == 490
    assert payloads_needed_from(500, [400, 500], [500], 50) == 400


def write_snapshot(root: Path, number: int, chain_head: str) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    temporary = root / f".{number}.new"
    temporary.mkdir(parents=True)
    index = SnapshotIndex("run", number, digest, digest, chain_head, (SnapshotFile(ANCHOR_NAME, 1, (digest,)),))
    publish(temporary, root / str(number), index)


def test_snapshots_of_another_chain_or_without_a_stamp_are_not_used(tmp_path: Path) -> None:
    genesis = Digest(hashlib.sha256(b"genesis").digest())
    log = EntryLog(tmp_path / "log", RunId("run"), genesis)
    root = tmp_path / "snapshots"
    assert usable_snapshots(root, log) == []
    write_snapshot(root, 0, "")
    assert usable_snapshots(root, log) == []
    write_snapshot(root, 0, hashlib.sha256(b"a fork that lost").hexdigest())
    assert usable_snapshots(root, log) == []
    write_snapshot(root, 0, genesis.hex())
    write_snapshot(root, 7, genesis.hex())
    assert usable_snapshots(root, log) == [root / "0"]


class StandingSite:
    """At a state, which it writes unless it is to refuse."""

    def __init__(self) -> None:
        self.height = 0
        self.refusals: list[str] = []
        self.late: Path | None = None
        """One that appears while the next is written: whoever asked for it had given up waiting."""
        self.numel = 1000
        self.limit_s = 0.0
        """How long the last one was waited for at most."""

    async def ready(self) -> SiteLayout:
        return SiteLayout(self.numel, {}, 1)

    async def write_snapshot(self, directory: str, *, timeout_s: float) -> SnapshotSaved:
        self.limit_s = timeout_s
        if self.late is not None:
            self.late.mkdir(parents=True)
        if self.refusals:
            raise RequestRefused(self.refusals.pop(0), "an entry is half applied; ask again when it is applied")
        digest = hashlib.sha256(b"").hexdigest()
        made = Path(directory).parent / ".made"
        made.mkdir(parents=True)
        files = (SnapshotFile(ANCHOR_NAME, 1, (digest,)),)
        publish(made, Path(directory), SnapshotIndex(RUN, self.height, digest, digest, "", files))
        return SnapshotSaved(0, RoundIndex(self.height), directory, 1, 0.0)

    def status(self) -> Any:
        return SimpleNamespace(work_needed=None)


class KeeperWorld:
    """A keeper for which every second snapshot is due, over a chain of six entries."""

    def __init__(self, folder: Path) -> None:
        self.log = EntryLog(folder / "log", RUN, GENESIS)
        for signed in chain(6):
            self.log.append_bare(signed, LENGTHS)
        self.root = folder / "snapshots"
        self.told: list[Event] = []
        self.site = StandingSite()
        work, aside = KeptWorkStore(folder / "work"), Aside(folder / "aside")
        self.keeper = SnapshotKeeper(self.root, Retention(2, 10, 1000), tuple, work, aside, self.told.append)

    async def applied(self, height: int, stands_at: int = 0) -> list[int]:
        """Which snapshots there are when this state was applied, and what was due of it is done; `stands_at`: the site
        has gone on to that state meanwhile."""
        self.site.height = stands_at or height
        self.keeper.applied(height)
        task = asyncio.create_task(self.keeper.run(self.site, self.log))  # type: ignore[arg-type]
        while self.keeper._wanted.qsize() or not self.keeper._wanted._getters:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
            assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return list_rounds(self.root)


async def test_snapshot_for_which_there_was_no_moment_is_written_of_the_next_state(tmp_path: Path) -> None:
    world = KeeperWorld(tmp_path)
    world.site.refusals = ["busy", "busy"]
    assert await world.applied(2) == []
    assert await world.applied(3) == []
    assert await world.applied(5) == [5], "nothing is due there but what is owed"
    assert not any(isinstance(event, AlertRaised) for event in world.told)


async def test_state_that_moved_on_before_its_snapshot_is_made_good_at_the_next(tmp_path: Path) -> None:
    world = KeeperWorld(tmp_path)
    assert await world.applied(2, stands_at=3) == []
    assert await world.applied(3) == [3]


@pytest.mark.parametrize("kind", ["disk_full", "store"])
async def test_snapshot_that_failed_is_told_and_comes_when_the_next_is_due(kind: str, tmp_path: Path) -> None:
    world = KeeperWorld(tmp_path)
    world.site.refusals = [kind]
    assert await world.applied(2) == []
    assert [event.code for event in world.told if isinstance(event, AlertRaised)] == ["snapshot_failed"]
    assert await world.applied(3) == []
    assert await world.applied(4) == [4]


async def test_snapshot_that_fails_when_it_is_whole_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the size of the state, and the disk may have failed because it is full."""
    world = KeeperWorld(tmp_path)

    def full(directory: Path, chain_head: bytes) -> SnapshotIndex:
        raise DiskFull("writing index.json: the disk is full")

    monkeypatch.setattr("dilocoxd.daemon.chain.snapshots.stamp_chain_head", full)
    assert await world.applied(2) == []
    assert [event.code for event in world.told if isinstance(event, AlertRaised)] == ["snapshot_failed"]
    assert list(world.root.iterdir()) == []
    monkeypatch.undo()
    assert await world.applied(4) == [4]


async def test_large_state_has_the_time_that_its_bytes_take(tmp_path: Path) -> None:
    """56 GB, written and read again at 200 MB/s, take more than nine minutes."""
    world = KeeperWorld(tmp_path)
    assert await world.applied(2) == [2]
    small_s, world.site.numel = world.site.limit_s, 7_000_000_000
    assert await world.applied(4) == [2, 4]
    assert 600 <= small_s < 601 and world.site.limit_s > 3_600


async def test_snapshot_that_nobody_waits_for_any_more_takes_no_room(tmp_path: Path) -> None:
    world = KeeperWorld(tmp_path)
    world.site.late = world.root / ".2.written.tmp"
    assert await world.applied(4) == [4]
    assert [path.name for path in world.root.iterdir()] == ["4"]


async def test_last_state_of_a_run_is_written_when_none_was_due(tmp_path: Path) -> None:
    """Asked for again while an entry is half applied, in the place of one of a fork that lost, and not for ever where
    it cannot be written."""
    world = KeeperWorld(tmp_path)
    write_snapshot(world.root, 6, hashlib.sha256(b"a fork that lost").hexdigest())
    world.site.height, world.site.refusals = 6, ["busy", "busy"]
    task = asyncio.create_task(world.keeper.run(world.site, world.log))  # type: ignore[arg-type]
    await asyncio.wait_for(world.keeper.write_last(world.log), 10)
    assert usable_snapshots(world.root, world.log) == [world.root / "6"]
    written = len(world.told)
    await asyncio.wait_for(world.keeper.write_last(world.log), 10)
    assert len(world.told) == written, "it is there already"
    shutil.rmtree(world.root / "6")
    world.site.refusals = ["the disk is full"]
    await asyncio.wait_for(world.keeper.write_last(world.log), 10)
    assert list_rounds(world.root) == [] and isinstance(world.told[-1], AlertRaised)
    task.cancel()
