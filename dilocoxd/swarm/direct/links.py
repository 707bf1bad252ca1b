"""One data connection as asyncio sees it: how it is opened, and how one that came is taken through its handshake."""

import asyncio
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.config.addresses import socket_family
from dilocoxd.errors import PeerError
from dilocoxd.ipc.accepting import HANDSHAKE_S, SHUTDOWN_S, handed_over
from dilocoxd.swarm.direct.channel import Channel
from dilocoxd.swarm.direct.kernel import Options
from dilocoxd.swarm.direct.sockets import tune

IDLE_S: Final = 300.0
"""A connection nobody has used for so long is closed by its opener."""
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Of ours, before a writer waits; what is written at a time is a frame of at most as much. More would lie here for the
connection that is slowest at the end, while others have nothing left."""


class Turn:
    """When all answers of an exchange are read: then it is the next one's turn to read."""

    def __init__(self) -> None:
        self._is_over = asyncio.Event()
        self._then: list[Callable[[], None]] = []

    def end(self) -> None:
        """It is the next one's turn."""
        if not self._is_over.is_set():
            self._is_over.set()
            for call in self._then:
                call()

    async def wait(self) -> None:
        """Return when it is over."""
        await self._is_over.wait()

    def then(self, call: Callable[[], None]) -> None:
        """Call this when it is over; at once if it is."""
        if self._is_over.is_set():
            call()
        else:
            self._then.append(call)


@dataclass(slots=True, eq=False)
class DataLink:
    """A connection after its handshake."""

    channel: Channel
    tls: ssl.SSLObject
    sock: Options
    omits_digests: bool = False
    """Whether the other side takes pieces without a digest."""
    is_of_node: bool = False
    """It came from a node of the peer, which may be cut off while the peer is not."""
    ends_at: float = math.inf
    """With the certificate of the node at the other end: then it carries what it has begun, and nothing else."""
    idle_since: float = 0.0
    num_under_way: int = 0
    """Exchanges that have begun and are not over."""
    is_written: bool = False
    """One of them is being written."""
    is_spoilt: bool = False
    """One of them has failed: it carries no other."""
    is_outdated: bool = False
    """It was opened with a certificate that we show no more: it carries what it has begun, and nothing else."""
    newest: Turn | None = None
    """Of the exchange that began last, while it is not over."""

    @property
    def rests_until(self) -> float:
        """So long it is kept without an exchange."""
        return min(self.ends_at, self.idle_since + IDLE_S)

    @property
    def is_over(self) -> bool:
        """Whether the other side has ended it, or it broke."""
        return self.channel.is_over

    @property
    def is_ended(self) -> bool:
        """The same, with bytes that came and are not read."""
        return self.channel.is_ended

    def certificate(self) -> bytes | None:
        """DER of what the other side showed."""
        return self.tls.getpeercert(True)

    def protocol(self) -> str:
        """What the two agreed on by ALPN; empty: nothing."""
        return self.tls.selected_alpn_protocol() or ""

    def abort(self) -> None:
        """End it now; what was not sent is not sent."""
        self.channel.abort()


async def accept_link(sock: socket.socket, context: ssl.SSLContext) -> DataLink:
    """The connection that came by `sock`, which is closed if this fails. Raises PeerError."""
    channel = Channel()
    tune(sock)
    try:
        transport = await handed_over(sock, lambda: channel, context)
    except (OSError, TimeoutError) as error:
        raise PeerError(f"handshake failed ({_shown(error)})") from error
    return _link(channel, transport)


async def open_link(ip: str, port: int, context: ssl.SSLContext, *, timeout_s: float) -> DataLink:
    """A connection to whom the context believes. Raises PeerError.

    The event loop makes the socket. One of ours would be closed twice where the other side resets the connection
    before our first bytes (a process that was killed, or one that means it): uvloop ties a socket to its transport
    only then, when the transport has closed the descriptor already, whose number is another's at the second time.
    """
    loop, channel = asyncio.get_running_loop(), Channel()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: channel,
                ip,
                port,
                family=socket_family(ip),
                ssl=context,
                server_hostname="dilocoxd",
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
    except TimeoutError:
        raise PeerError(f"{ip} port {port} does not answer") from None
    except (OSError, OverflowError) as error:
        raise PeerError(f"{ip} port {port}: {_shown(error)}") from error
    link = _link(channel, transport)
    tune(transport.get_extra_info("socket"))
    return link


def _link(channel: Channel, transport: asyncio.Transport) -> DataLink:
    transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is None:
        raise PeerError("it was ended as soon as it was open")
    return DataLink(channel, transport.get_extra_info("ssl_object"), sock)


def _shown(error: BaseException) -> str:
    return str(getattr(error, "reason", "") or getattr(error, "strerror", "") or type(error).__name__)
