"""Runs the alert watch: looks, raises and clears. Only I/O is here; the conditions are in observe/alert_rules.py."""

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.answers.peers import Peer
from dilocoxd.answers.progress import RunProgress
from dilocoxd.answers.rounds import RoundRow
from dilocoxd.answers.status import Status
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.observe.alert_rules import LOOK_EVERY_S, RETOLD, AlertWatch, Seen
from dilocoxd.store.durable import store_error
from dilocoxd.telemetry.catalogue import AlertRaised, LoopBlocked


@dataclass(frozen=True, slots=True)
class Watched:
    """Where the watch looks."""

    status: Callable[[], Status]
    peers: Callable[[], list[Peer]]
    disk: Path
    """Any place on the disk with the run directory."""
    snapshot_bytes: Callable[[], int]
    """Size of the newest snapshot."""
    num_dropped: Callable[[], int]
    """Values that metrics sinks did not take."""
    rounds: Callable[[], Sequence[RoundRow]]
    """The newest ones."""
    tell_figures: Callable[[RunProgress], None]
    """Each look: to the sinks."""


class AlertDriver:
    """For one daemon."""

    def __init__(self, watched: Watched, alerts: AlertBook) -> None:
        self._watched = watched
        self._alerts = alerts
        self._watch = AlertWatch()
        self._told: dict[str, str] = {}
        """Texts by code, of the last time."""

    def note(self, record: dict[str, object]) -> None:
        """An event, in its JSON form."""
        name, now = record["event"], time.monotonic()
        if name == LoopBlocked.name:
            self._watch.note_blocked(float(str(record["lag_s"])), now)
        elif name == AlertRaised.name:
            self._watch.note_raised(str(record["code"]), now)

    async def run(self) -> None:
        """Until cancelled. Raises StoreError when the disk cannot be looked at."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            seen = await self._seen()
            self.settle(seen, time.monotonic())
            self._watched.tell_figures(seen.status.progress)

    async def _seen(self) -> Seen:
        watched = self._watched
        try:
            disk = await asyncio.to_thread(shutil.disk_usage, watched.disk)
        except OSError as error:
            raise store_error("looking at the space on the disk of", watched.disk, error) from error
        room = (disk.free, disk.total)
        sizes = (watched.snapshot_bytes(), watched.num_dropped())
        return Seen(watched.status(), watched.peers(), *room, *sizes, watched.rounds())

    def settle(self, seen: Seen, now: float) -> None:
        """Raise what stands now and clear what does not."""
        for code, text in self._watch.look(seen, now).items():
            if not text:
                self._alerts.clear(code)
            elif not self._alerts.stands(code) or (code in RETOLD and self._told.get(code) != text):
                self._told[code] = text
                self._alerts.alert(code, text)
        for code in self._watch.expired(now):
            self._alerts.clear(code)
