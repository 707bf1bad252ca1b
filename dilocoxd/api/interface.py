"""What the API needs of the daemon: a view that only reads, and the few commands that change something.

Source: docs/internals.md section 6. Implemented by daemon/view.py and daemon/control.py.
"""

from collections.abc import Callable
from typing import Any, Protocol


class View(Protocol):
    """What the daemon shows. Plain methods are cheap and free of side effects; coroutines read files in a thread."""

    @property
    def is_healthy(self) -> bool:
        """Loop and supervisor live."""

    @property
    def is_ready(self) -> bool:
        """The site trains with the swarm."""

    def status(self) -> dict[str, Any]:
        """GET /v1/status."""

    def peers(self) -> list[dict[str, Any]]:
        """GET /v1/peers."""

    def rounds(self, first: int, limit: int) -> list[dict[str, Any]]:
        """Rounds ascending from `first`."""

    def rounds_before(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        """Rounds descending, below `before` (None: from the newest)."""

    def round(self, index: int) -> dict[str, Any] | None:
        """One round, or None if this daemon does not know it."""

    def losses(self) -> dict[str, Any]:
        """GET /v1/losses."""

    def timeline(self) -> list[dict[str, Any]]:
        """GET /v1/timeline."""

    def swarm_timeline(self, since: float) -> dict[str, Any]:
        """GET /v1/timeline/sites: spans that end after `since`."""

    def alerts(self) -> list[dict[str, Any]]:
        """GET /v1/alerts."""

    def config(self) -> dict[str, Any]:
        """GET /v1/config, secrets masked."""

    async def log(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        """Entries of the log descending, below `before` (None: from the newest)."""

    async def log_entry(self, index: int) -> dict[str, Any] | None:
        """One entry, or None if it is not in the log."""

    async def snapshots(self) -> list[dict[str, Any]]:
        """GET /v1/snapshots."""

    def metrics(self) -> str:
        """GET /metrics, Prometheus text."""

    def listen(self, listener: Callable[[dict[str, object]], None]) -> None:
        """Call `listener` with every event from now on; it must not block or raise."""


class Control(Protocol):
    """The commands. Each returns one sentence for the operator. Raises CommandRefused."""

    def pause(self, reason: str) -> str:
        """The trainers stop at the next inner step; the shared state goes on following the others."""

    def resume(self) -> str:
        """The trainers go on."""

    def leave(self) -> str:
        """Settle the round, say goodbye, end."""

    def snapshot(self) -> str:
        """Write the shared state to disk as soon as the outer worker is free."""

    async def reach(self) -> dict[str, Any]:
        """What a peer finds when it tries to connect to us; model `Reach`."""

    def set_log_level(self, level: str) -> str:
        """Least severity of events on stderr or in the journal."""
