"""Says once a second what a long request is doing, and carries all answers to the daemon (two threads send)."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from dilocoxd.wire.local.worker import WorkerAlive

ALIVE_INTERVAL_S = 1.0


class Sender(Protocol):
    """What of the local connection is needed here."""

    def send(self, message: Any) -> None: ...


class Reporter:
    """Sends messages one at a time; `step` adds a WorkerAlive when the last message is a second old.

    Only real progress sends a sign of life: a worker that hangs inside a step goes silent, as it should.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._doing = ""
        self._total = 1

    def send(self, message: Any) -> None:
        """Send any message. Raises DaemonGone."""
        with self._lock:
            self._sender.send(message)
            self._last = time.monotonic()

    def begin(self, doing: str, total: int) -> None:
        """A request of `total` steps starts."""
        self._doing = doing
        self._total = max(total, 1)

    def step(self, done: int) -> None:
        """`done` steps of the request are complete. Raises DaemonGone."""
        self.pulse(self._doing, done, self._total)

    def pulse(self, doing: str, done: int, total: int) -> None:
        """`done` of `total` steps of work beside the requests are complete (snapshots). Raises DaemonGone."""
        if time.monotonic() - self._last >= ALIVE_INTERVAL_S:
            self.send(WorkerAlive(doing, min(1000, 1000 * done // max(total, 1))))
