"""The commands of an operator: pause, resume, leave, snapshot now, log level. Implements api.interface.Control.

Nothing here waits: each command starts its effect and says what will happen. A pause does not outlive the daemon.
"""

from collections.abc import Callable
from typing import Any, Final

from dilocoxd.daemon.parts import Daemon
from dilocoxd.daemon.reach import ask_peers
from dilocoxd.errors import CommandRefused
from dilocoxd.store.snapshots import INDEX_NAME
from dilocoxd.telemetry.catalogue import Level, LogLevelChanged, SitePaused, SiteResumed
from dilocoxd.telemetry.events import SEVERITY

OPERATOR: Final = "operator"


class DaemonControl:
    """Commands for one daemon; called on its loop."""

    def __init__(self, daemon: Daemon, stop: Callable[[str], None]) -> None:
        self._daemon = daemon
        self._stop = stop

    def pause(self, reason: str) -> str:
        """The trainers stop at the next inner step; the shared state goes on following the others."""
        daemon = self._daemon
        if daemon.lifecycle.state in ("leaving", "failed"):
            raise CommandRefused(f"the daemon is {daemon.lifecycle.state}; there is nothing to pause")
        daemon.ledger.pauses.hold(OPERATOR, reason)
        if not daemon.lifecycle.is_paused:
            daemon.lifecycle.is_paused = True
            daemon.opened.events.emit(SitePaused(reason=reason))
            self._tell_others()
        return "the trainers stop at the next inner step; resume with `dilocoxd resume`"

    def resume(self) -> str:
        """The trainers go on."""
        daemon = self._daemon
        if not daemon.lifecycle.is_paused:
            raise CommandRefused("the site is not paused")
        daemon.lifecycle.is_paused = False
        daemon.ledger.pauses.release(OPERATOR)
        daemon.opened.events.emit(SiteResumed())
        self._tell_others()
        return "the trainers go on"

    def _tell_others(self) -> None:
        self._daemon.membership.report()
        self._daemon.swarm.announce()

    def leave(self) -> str:
        """Settle the round, say goodbye, end."""
        if self._daemon.lifecycle.state == "leaving":
            raise CommandRefused("the daemon is leaving already")
        self._stop("asked for over the API")
        return "the daemon settles the round, writes its checkpoints and ends; start it again with `dilocoxd run`"

    def snapshot(self) -> str:
        """Write the shared state to disk as soon as the outer worker is free."""
        daemon = self._daemon
        if daemon.ledger.state is None or daemon.rounds is None:
            raise CommandRefused("the shared state is not loaded yet; try again later")
        height = daemon.ledger.chain.height
        if (daemon.opened.run_dir.snapshots / str(height) / INDEX_NAME).exists():
            return f"state {height} is on disk already"
        if not daemon.snapshots.request(height):
            raise CommandRefused("another snapshot is about to be written; try again later")
        return f"state {height} is being written, unless the next entry overtakes it; see /v1/snapshots"

    async def reach(self) -> dict[str, Any]:
        """What a peer finds when it tries to connect to the addresses that we announce."""
        swarm = self._daemon.swarm
        return await ask_peers(self._daemon.membership.live(), swarm.fetch_bytes)

    def set_log_level(self, level: str) -> str:
        """Least severity of events on stderr or in the journal."""
        known: list[Level] = [one for one in SEVERITY if one == level]
        if not known:
            raise CommandRefused(f"level {level!r} does not exist; use one of {', '.join(SEVERITY)}")
        self._daemon.opened.events.level = known[0]
        self._daemon.opened.events.emit(LogLevelChanged(least=level))
        return f"events of level {level} and above are shown"
