"""Has the outer worker write snapshots of the shared state, one at a time; keeps the newest few and the log small.

Snapshots only save time (restarts, newcomers): one that fails is reported and tried again at the next due round. One
for which there was no moment, because an entry was half applied, is written of the next state.
Payloads of old entries are dropped once nothing here is replayed from them and no live peer stands below them; but not
for ever for a peer that does not move (`payload_rounds_max`), which then takes a snapshot. Entries are never dropped.
The last state of a run that is complete gets one too: it is what people want of the run.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.ids import Digest
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import list_rounds, move_in, prune, read_index, stamp_chain_head, temporary_directory
from dilocoxd.telemetry.alerts import raised
from dilocoxd.telemetry.catalogue import Event, SnapshotWritten

PAYLOAD_ROUNDS_MIN: Final = 64
"""Payloads of so many newest entries always stay: whoever was away for less than that replays them."""
_WRITTEN: Final = ".written"
"""Behind the number of one that the outer worker writes; it has no stamp yet."""
WRITE_S: Final = 600.0
VALUES_PER_S: Final = 2_000_000
"""So slow may a disk be that takes a state and gives it back: 7 billion values have 56 GB, in both directions."""
AGAIN_S: Final = 0.2
"""Before the last state is asked for again, for which there was no moment."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How many are kept."""

    every_rounds: int
    keep: int
    payload_rounds_max: int
    payload_bytes_max: int = 0
    """0: no limit."""
    keeps_first: bool = False
    """Snapshot 0 stays: it was made of pretrained weights."""

    def rounds_max(self, payload_bytes: int) -> int:
        """The limit in rounds that follows from both."""
        if not self.payload_bytes_max or not payload_bytes:
            return self.payload_rounds_max
        return min(self.payload_rounds_max, self.payload_bytes_max // payload_bytes)


def usable_snapshots(root: Path, log: EntryLog) -> list[Path]:
    """Snapshots of states of this chain, newest first. Blocks.

    A fork that lost, or a crash before a snapshot was stamped, leaves others under the same numbers: where no entry
    follows yet, nothing but the stamp tells them apart.
    """
    of_chain = [root / str(number) for number in list_rounds(root) if number <= log.height]
    return [path for path in reversed(of_chain) if _is_stamped(path, log.hash_at(int(path.name)))]


def _is_stamped(path: Path, head: Digest) -> bool:
    """A whole snapshot of this chain lies there. Blocks."""
    try:
        return read_index(path).chain_head == head.hex()
    except StoreError:
        return False


def replayable_height(log: EntryLog, snapshots: Sequence[Path]) -> int:
    """How far the log leads from the newest of these snapshots, or from genesis, without a gap. Blocks."""
    start = max((int(path.name) for path in snapshots), default=0)
    return next((index for index in range(start, log.height) if not log.has_payload(index)), log.height)


def payloads_needed_from(height: int, snapshots: Sequence[int], peer_heights: Sequence[int], rounds_max: int) -> int:
    """First entry whose payload must stay: for our own replay, for live peers within limits, for short absences."""
    lowest_peer = max(min(peer_heights, default=height), height - rounds_max)
    return max(0, min(lowest_peer, min(snapshots, default=0), height - min(PAYLOAD_ROUNDS_MIN, rounds_max)))


def write_limit_s(num_values: int) -> float:
    """After so many seconds a snapshot of so many values is given up; one that is too slow would never be there."""
    return WRITE_S + num_values / VALUES_PER_S


class SnapshotKeeper:
    """Writes to `directory`/<round>."""

    def __init__(
        self,
        directory: Path,
        retention: Retention,
        peer_heights: Callable[[], Sequence[int]],
        kept_work: KeptWorkStore,
        aside: Aside,
        emit: Callable[[Event], None],
    ) -> None:
        """`peer_heights`: where the live peers stand. `kept_work` is kept as long as payloads of the log.

        Nothing is written or dropped while a branch lies `aside`: its way back needs what is there.
        """
        self._directory = directory
        self._retention = retention
        self._peer_heights = peer_heights
        self._kept_work = kept_work
        self._aside = aside
        self._emit = emit
        self._wanted: asyncio.Queue[int] = asyncio.Queue(1)
        self._is_owed = False
        """One that was due could not be written of its state."""
        self.newest_bytes = 0
        """Size of the last snapshot written."""

    def applied(self, height: int) -> None:
        """State `height` is in the buffers now; skipped when another one already waits for its turn."""
        if (self._is_owed or height % self._retention.every_rounds == 0) and not self._wanted.full():
            self._is_owed = False
            self._wanted.put_nowait(height)

    def request(self, height: int) -> bool:
        """Write state `height` now; False: one is being asked for already."""
        if self._wanted.full():
            return False
        self._wanted.put_nowait(height)
        return True

    async def write_last(self, log: EntryLog) -> None:
        """Until the newest state is on disk, or could not be written, which an alert says. No entry follows it."""
        height, head = log.height, log.hash_at(log.height)
        while not await asyncio.to_thread(_is_stamped, self._directory / str(height), head):
            is_asked = self.request(height)
            await self._wanted.join()
            if is_asked and not self._is_owed:
                return
            await asyncio.sleep(AGAIN_S)

    async def run(self, site: TrainingSite, log: EntryLog) -> None:
        """Until cancelled."""
        while True:
            height = await self._wanted.get()
            try:
                await self._try_to_write(height, site, log)
            finally:
                self._wanted.task_done()

    async def _try_to_write(self, height: int, site: TrainingSite, log: EntryLog) -> None:
        try:
            await self._write(height, site, log)
        except (WorkerError, StoreError) as error:
            self._is_owed = isinstance(error, RequestRefused) and error.kind == "busy"
            if not self._is_owed:
                self._emit(raised("snapshot_failed", str(error)))
        await asyncio.to_thread(self._drop_unplaced)

    async def _write(self, height: int, site: TrainingSite, log: EntryLog) -> None:
        directory = self._directory / str(height)
        if height > log.height:
            return  # rolled back meanwhile
        if not await asyncio.to_thread(self._aside.is_empty):
            return
        head = log.hash_at(height)
        # Until it is known whose state it is, it has no place among the others: one that was adopted may lie there.
        prepared = temporary_directory(self._directory / f"{height}{_WRITTEN}")
        written = await site.write_snapshot(str(prepared), timeout_s=write_limit_s((await site.ready()).numel))
        await asyncio.to_thread(stamp_chain_head, prepared, head)
        if written.round != height or height > log.height or log.hash_at(height) != head:
            # The state moved on before its turn came, or the chain was rolled back: the name would lie.
            self._is_owed = True
            return
        await asyncio.to_thread(move_in, prepared, directory)
        await self._drop(height, head, log, site)
        self.newest_bytes = written.total_bytes
        self._emit(SnapshotWritten(round=height, snapshot_bytes=written.total_bytes, write_s=written.seconds))

    def _drop_unplaced(self) -> None:
        """What was written and has found no place: it failed behind that, or came when nobody waited any more. It has
        the size of the state. Blocks."""
        for path in self._directory.glob(temporary_directory(Path(f"*{_WRITTEN}")).name):
            shutil.rmtree(path, ignore_errors=True)

    async def _drop(self, height: int, head: Digest, log: EntryLog, site: TrainingSite) -> None:
        # A fork may have dropped more of our work, further back, than the error feedback could take in meanwhile; and
        # before training begins, saved feedback may have to look up what an old entry counted of it.
        has_begun, peer_heights = site.status().work_needed is not None, self._peer_heights()
        first = await asyncio.to_thread(self._drop_of_log, height, head, log, peer_heights, has_begun=has_begun)
        needed = site.status().work_needed
        if first is not None and needed is not None:
            await asyncio.to_thread(self._kept_work.drop_below, first, needed)

    def _drop_of_log(
        self, height: int, head: Digest, log: EntryLog, peer_heights: Sequence[int], *, has_begun: bool
    ) -> int | None:
        """Snapshots, and once the site has begun payloads: those below what is returned. None: a branch lies aside, or
        ours was left meanwhile. Blocks."""
        with self._aside.changing:
            if not self._aside.is_empty() or height > log.height or log.hash_at(height) != head:
                return None
            prune(self._directory, self._retention.keep, height, keeps_first=self._retention.keeps_first)
            newest = log.payload(height - 1).length if height and log.has_payload(height - 1) else 0
            rounds_max = self._retention.rounds_max(newest)
            rounds = [number for number in list_rounds(self._directory) if number or not self._retention.keeps_first]
            first = payloads_needed_from(height, rounds, peer_heights, rounds_max)
            if has_begun:
                log.drop_payloads(first)
            return first
