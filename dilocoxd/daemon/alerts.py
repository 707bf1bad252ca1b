"""Runs the alert watch: looks, raises and clears. Only I/O is here; the conditions are in alert_watch.py."""

import asyncio
import shutil
import time

from dilocoxd.daemon.alert_watch import LOOK_EVERY_S, AlertWatch, Seen
from dilocoxd.daemon.parts import Daemon
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.telemetry.catalogue import AlertRaised, LoopBlocked


class AlertDriver:
    """For one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._watch = AlertWatch()
        daemon.opened.events.listen(self._on_event)

    def _on_event(self, record: dict[str, object]) -> None:
        name, now = record["event"], time.monotonic()
        if name == LoopBlocked.name:
            self._watch.note_blocked(float(str(record["lag_s"])), now)
        elif name == AlertRaised.name:
            self._watch.note_raised(str(record["code"]), now)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.settle(await self._seen(), time.monotonic())

    async def _seen(self) -> Seen:
        daemon = self._daemon
        disk = await asyncio.to_thread(shutil.disk_usage, daemon.opened.run_dir.path)
        status, peers = daemon.view.status(), daemon.view.peers()
        return Seen(status, peers, disk.free, disk.total, daemon.snapshots.newest_bytes, daemon.num_dropped())

    def settle(self, seen: Seen, now: float) -> None:
        """Raise what stands now and clear what does not."""
        for code, text in self._watch.look(seen, now).items():
            if not text:
                self._daemon.clear_alert(code)
            elif code not in self._daemon.journal.alerts:
                self._daemon.alert(code, text, kind_of(code).remedy)
        for code in self._watch.expired(now):
            self._daemon.clear_alert(code)
