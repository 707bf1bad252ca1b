"""What the kernel says of a data connection (TCP_INFO), and how it is asked to see whether the other host answers."""

import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Final, Protocol

from dilocoxd.machines.membership.hosts import LinkFacts
from dilocoxd.swarm.direct.sockets import KEEP_ALIVE

_INFO: Final = struct.Struct("=8B24I")
"""struct tcp_info of linux/tcp.h, as far as it is read here."""
_RETRANSMITS, _PROBES = 2, 3
_SENT, _RECEIVED, _ACKNOWLEDGED, _ROUND_TRIP = 17, 19, 20, 23
ASK_AFTER_S: Final = 1.0
"""The shortest time that TCP_KEEPIDLE knows."""


CLOSED: Final = (OSError, ValueError)
"""What asyncio's sockets, and uvloop's, raise once they are closed."""


class Options(Protocol):
    """The part of a socket that is used here (asyncio shows no more of it)."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...
    def setsockopt(self, level: int, optname: int, value: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One look at one connection."""

    link: LinkFacts
    moved_s: float
    """Since data went or came by it."""


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
    return KernelFacts(link, min(info[_SENT], info[_RECEIVED]) / 1e3)


def ask(sock: Options) -> None:
    """Have it send a keep-alive now, if nothing came for ASK_AFTER_S and nothing that was sent is unanswered."""
    _set_idle(sock, int(ASK_AFTER_S))


def rest(sock: Options) -> None:
    """Keep-alives as rarely as before."""
    _set_idle(sock, dict(KEEP_ALIVE)[socket.TCP_KEEPIDLE])


def _set_idle(sock: Options, seconds: int) -> None:
    with contextlib.suppress(*CLOSED):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
