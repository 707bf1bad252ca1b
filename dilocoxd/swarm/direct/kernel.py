"""What the kernel says of a data connection (TCP_INFO), and how it is asked to see whether the other host answers.

It knows how much of what was written the other host has acknowledged, too. Who waits for an answer needs that: written
is what the kernel has, and there it waits for its part of a thin line. Source: protocol/04-streams.md, S3.
"""

import contextlib
import math
import socket
import struct
from dataclasses import dataclass
from typing import Final, Protocol

from dilocoxd.machines.membership.hosts import LinkFacts
from dilocoxd.swarm.direct.sockets import CLOSED, KEEP_ALIVE

_INFO: Final = struct.Struct("=8B24I")
"""struct tcp_info of linux/tcp.h, as far as it is read here."""
_RETRANSMITS, _PROBES = 2, 3
_SENT, _RECEIVED, _ACKNOWLEDGED, _ROUND_TRIP = 17, 19, 20, 23
_COUNTS: Final = struct.Struct("=8B24I2QQ")
"""The same up to tcpi_bytes_acked, which is the last field here."""
ASK_AFTER_S: Final = 1.0
"""The shortest time that TCP_KEEPIDLE knows."""
RECORD_BYTES: Final = 16 * 1024
"""Of a record of TLS 1.3, at most."""
SEAL_BYTES: Final = 22
"""What a record adds."""
MOVES_EVERY_S: Final = 0.5
"""So often somebody who waits asks whether what was written moves."""


class Options(Protocol):
    """The part of a socket that is used here (asyncio shows no more of it)."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...
    def setsockopt(self, level: int, optname: int, value: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One look at one connection."""

    link: LinkFacts
    moved_s: float
    """Since data went or came by it; `came_s`: since it came."""
    came_s: float


def facts_of(sock: Options) -> KernelFacts | None:
    """None: it is closed, or this kernel does not say."""
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except CLOSED:
        return None
    if len(data) < _INFO.size:
        return None
    info = _INFO.unpack(data)
    link = LinkFacts(
        heard_s=min(info[_RECEIVED], info[_ACKNOWLEDGED]) / 1e3,
        num_repeats=max(info[_RETRANSMITS], info[_PROBES]),
        round_trip_s=info[_ROUND_TRIP] / 1e6,
    )
    return KernelFacts(link, min(info[_SENT], info[_RECEIVED]) / 1e3, info[_RECEIVED] / 1e3)


def came_s(sock: Options | None) -> float:
    """Since data came, if only a part of a record of TLS; no end where this kernel does not say."""
    facts = facts_of(sock) if sock is not None else None
    return facts.came_s if facts is not None else math.inf


def ask(sock: Options) -> None:
    """Have it send a keep-alive now, if nothing came for ASK_AFTER_S and nothing that was sent is unanswered."""
    _set_idle(sock, int(ASK_AFTER_S))


def rest(sock: Options) -> None:
    """Keep-alives as rarely as before."""
    _set_idle(sock, dict(KEEP_ALIVE)[socket.TCP_KEEPIDLE])


def _set_idle(sock: Options, seconds: int) -> None:
    with contextlib.suppress(*CLOSED):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)


class Written:
    """What was written on a connection, and how much of it the other host has not acknowledged.

    TLS does not say how many bytes it makes of ours, so they are counted as it makes them. A count that is a little off
    has those who wait believe a moment too early that all is there, or see that nothing moves any more.
    """

    def __init__(self, sock: Options | None) -> None:
        """`sock` None: not open yet."""
        self._sock = sock
        self._first = 0
        """Acknowledged before anything was written."""
        self.num_bytes = 0
        """As they are sent."""

    def add(self, length: int) -> None:
        """So many bytes more, which become records of their own."""
        if not self.num_bytes:
            self._first = self._acknowledged() or 0
        self.num_bytes += length + SEAL_BYTES * -(-length // RECORD_BYTES)

    def left(self, up_to: int) -> int:
        """Of the first `up_to` bytes, those not acknowledged; 0 where the kernel does not say."""
        if not up_to or (acknowledged := self._acknowledged()) is None:
            return 0
        return max(0, up_to - (acknowledged - self._first))

    def _acknowledged(self) -> int | None:
        if self._sock is None:
            return None
        try:
            data = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
        except CLOSED:
            return None
        return int(_COUNTS.unpack(data)[-1]) if len(data) == _COUNTS.size else None


class Moving:
    """Until when to wait for what follows from all that is written by now: silence counts from the moment at which the
    last of it that moved was acknowledged. What moves slower than `bytes_per_s_min` does not count as moving, for
    somebody could else be waited for as long as it likes."""

    def __init__(self, written: Written, now: float, bytes_per_s_min: float) -> None:
        self._written, self._up_to = written, written.num_bytes
        self._left = written.left(self._up_to)
        self._moved_at = now
        self._latest = now + self._left / bytes_per_s_min

    def due(self, silence_s: float, now: float) -> float:
        """When it is over, as it looks now."""
        if self._left:
            left = self._written.left(self._up_to)
            if left < self._left:
                self._left, self._moved_at = left, now
        return min(self._moved_at, self._latest) + silence_s

    def next_look(self, silence_s: float, now: float) -> float | None:
        """When to ask again; None: it is over."""
        due = self.due(silence_s, now)
        if now >= due:
            return None
        return min(due, now + MOVES_EVERY_S) if self._left else due
