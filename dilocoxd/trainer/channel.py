"""Commands of the daemon reach all ranks of a site at the same inner-step boundary.

Rank 0 reads the socket; whether it has commands rides on the all-reduce that every step needs anyway. While a rank
waits, rank 0 sends an empty round every second, so that no collective ever waits longer than its time-out.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from dilocoxd.ipc.client import DaemonConnection
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach

EXIT_DAEMON_GONE: Final = 3
_WAIT_S: Final = 1.0
_LENGTH: Final = struct.Struct("<I")
_HANG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class CommandChannel:
    """Rank 0's socket, shared with the other ranks through the control group."""

    def __init__(self, link: DaemonConnection, group: dist.ProcessGroup | None) -> None:
        self._link = link
        self._group = group
        self._is_reader = dist.get_rank() == 0

    def exchange(self, values: Sequence[float]) -> tuple[list[float], list[Any]]:
        """Sums of ``values`` over all ranks, and the commands that rank 0 has; the same result on every rank."""
        return self._exchange(values, self._pending(0.0) if self._is_reader else b"")

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums of ``values`` over all ranks; commands stay where they are."""
        return self._exchange(values, b"")[0]

    def wait(self) -> list[Any]:
        """Commands, as soon as rank 0 has any; an empty list after about a second without."""
        return self._exchange((), self._pending(_WAIT_S) if self._is_reader else b"")[1]

    def barrier(self) -> None:
        """All ranks are here."""
        self.sum(())

    def _exchange(self, values: Sequence[float], payload: bytes) -> tuple[list[float], list[Any]]:
        sums = torch.tensor([*values, float(len(payload))], dtype=torch.float64)
        dist.all_reduce(sums, group=self._group)
        *totals, num_bytes = sums.tolist()
        if not num_bytes:
            return totals, []
        data = torch.frombuffer(bytearray(payload or int(num_bytes)), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        return totals, _unpack(data.numpy().tobytes())

    def _pending(self, timeout_s: float) -> bytes:
        packed = bytearray()
        message = self._link.receive(timeout_s)
        while message is not None:
            if not isinstance(message, Attach):
                body = LOCAL_MESSAGES.encode(message)
                packed += _LENGTH.pack(len(body)) + body
            message = self._link.receive(0.0)
        return bytes(packed)


def _unpack(data: bytes) -> list[Any]:
    messages: list[Any] = []
    start = 0
    while start < len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        messages.append(LOCAL_MESSAGES.decode(data[start : start + length]))
        start += length
    return messages


def exit_when_daemon_goes(link: DaemonConnection, status: Callable[[], int] = lambda: EXIT_DAEMON_GONE) -> None:
    """End this process at once when the daemon's end of the socket closes, even in the middle of a step.

    A thread, because a rank may be blocked in a collective when it happens; it reads nothing from the socket.

    Args:
        status: says the exit status, when it is time.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(link.fileno(), _HANG_UP)
        poll.poll()
        os._exit(status())

    threading.Thread(target=watch, name="daemon-watch", daemon=True).start()
