"""Has the outer worker write snapshots of the shared state, one at a time, and keeps the newest few.

Snapshots only save time (restarts, newcomers): one that fails is reported and tried again at the next due round.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from dilocoxd.daemon.site_interface import Site
from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import prune, stamp_chain_head
from dilocoxd.telemetry.catalogue import AlertRaised, Event, SnapshotWritten


class SnapshotKeeper:
    """Writes to `directory`/<round>."""

    def __init__(self, directory: Path, every_rounds: int, keep: int, emit: Callable[[Event], None]) -> None:
        self._directory = directory
        self._every_rounds = every_rounds
        self._keep = keep
        self._emit = emit
        self._wanted: asyncio.Queue[int] = asyncio.Queue(1)

    def applied(self, height: int) -> None:
        """State `height` is in the buffers now; skipped when a snapshot is still being written."""
        if height % self._every_rounds == 0 and not self._wanted.full():
            self._wanted.put_nowait(height)

    def request(self, height: int) -> bool:
        """Write state `height` now; False: one is being asked for already."""
        if self._wanted.full():
            return False
        self._wanted.put_nowait(height)
        return True

    async def run(self, site: Site, log: EntryLog) -> None:
        """Until cancelled."""
        while True:
            height = await self._wanted.get()
            try:
                await self._write(height, site, log)
            except (WorkerError, StoreError) as error:
                remedy = "free space in the run directory; training goes on without this snapshot"
                self._emit(AlertRaised(code="snapshot_failed", text=str(error), remedy=remedy))

    async def _write(self, height: int, site: Site, log: EntryLog) -> None:
        directory = self._directory / str(height)
        written = await site.write_snapshot(str(directory))
        if written.round != height or height > log.height:
            # The state moved on before its turn came, or the chain was rolled back: the name would lie.
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            return
        await asyncio.to_thread(stamp_chain_head, directory, log.hash_at(height))
        await asyncio.to_thread(prune, self._directory, self._keep)
        self._emit(SnapshotWritten(round=height, snapshot_bytes=written.total_bytes, write_s=written.seconds))
