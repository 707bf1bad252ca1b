"""Opens the listening socket and bounds what connections may cost: how many, how long idle, how long for one request.

aiohttp closes idle keep-alive connections; what it does not bound is a client that connects and sends nothing, sends a
header byte by byte, or never reads the answer. Every second those are looked for.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from aiohttp import web

from dilocoxd.api.responses.problems import Handler
from dilocoxd.config.api import ApiSection
from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.ipc.accepting import accepted, handed_over

SILENT_S: Final = 30.0
"""A connection without a new request for this long is closed, whatever it is doing (event streams excepted)."""
BACKLOG: Final = 128
_DETAIL: Final = (
    b'{"type":"about:blank","title":"Service Unavailable","status":503,'
    b'"detail":"too many connections; close some or raise api.connections_max"}'
)
REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(_DETAIL), _DETAIL)
)


class Refuser(asyncio.Protocol):
    """Answers a connection beyond the limit without reading from it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say why, and close."""
        out = cast(asyncio.Transport, transport)  # those of uvloop are none, and do the same
        out.write(REFUSAL)
        out.close()


class Connections:
    """Protocol factory with a limit, and memory of who asked when."""

    def __init__(self, connections_max: int, silent_s: float = SILENT_S) -> None:
        self.most = connections_max
        self._silent_s = silent_s
        self._asked_at: dict[Any, float] = {}
        self._streams: set[Any] = set()
        self.server: Any = None
        """aiohttp's own protocol factory."""
        self.num_refused = 0

    def __call__(self) -> asyncio.BaseProtocol:
        """Protocol of a new connection."""
        if len(self.server.connections) >= self.most:
            self.num_refused += 1
            return Refuser()
        protocol: asyncio.BaseProtocol = self.server()
        return protocol

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Remember when each connection asked last."""
        self._asked_at[request.protocol] = asyncio.get_running_loop().time()
        if request.path == "/v1/events":
            self._streams.add(request.protocol)
        return await handler(request)

    def look(self) -> None:
        """About once a second: close what hangs."""
        now = asyncio.get_running_loop().time()
        open_ones = set(self.server.connections)
        self._asked_at = {protocol: at for protocol, at in self._asked_at.items() if protocol in open_ones}
        self._streams &= open_ones
        for protocol in open_ones:
            asked_at = self._asked_at.setdefault(protocol, now)
            if now - asked_at > self._silent_s and protocol not in self._streams and protocol.transport is not None:
                protocol.transport.abort()


def tls_context(section: ApiSection) -> ssl.SSLContext | None:
    """Context of the configured certificate, or None. Raises ConfigError."""
    if not section.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.tls_certificate, section.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"api.tls_certificate = {section.tls_certificate!r} with api.tls_key = {section.tls_key!r} cannot be used"
            f" ({reason_of(error)}); give PEM files that belong together and that the daemon may read"
        ) from error
    return context


@contextlib.asynccontextmanager
async def listening(connections: Connections, section: ApiSection) -> AsyncIterator[tuple[str, int]]:
    """Accepts connections until the block ends; yields the address really bound. Raises ConfigError."""
    loop, context = asyncio.get_running_loop(), tls_context(section)
    try:
        socks = await _sockets(section)
    except OSError as error:
        raise ConfigError(
            f"the HTTP API cannot listen on {section.host} port {section.port} ({error.strerror or error}); "
            "give another port with --api-port (api.port in site.toml) or stop the other program"
        ) from error
    shaking: set[asyncio.Task[None]] = set()
    # Ended below: a task group would wrap whatever the block raises.
    accepting = [loop.create_task(_accept(connections, sock, context, shaking), name="API") for sock in socks]
    try:
        bound = socks[0].getsockname()
        yield str(bound[0]), int(bound[1])
    finally:
        for task in (*accepting, *shaking):
            task.cancel()
        await asyncio.wait([*accepting, *shaking])
        for sock in socks:
            sock.close()


async def _sockets(section: ApiSection) -> list[socket.socket]:
    """One that listens at each address of the host, all at one port. Raises OSError.

    A name may have an address twice (localhost, where /etc/hosts says it of 127.0.0.1 and of ::1), and one of a family
    that this kernel does not have.
    """
    found: list[socket.socket] = []
    port, unknown = section.port, None
    at = await asyncio.get_running_loop().getaddrinfo(section.host, port, type=socket.SOCK_STREAM)
    try:
        for family, host in dict.fromkeys((family, str(where[0])) for family, _, _, _, where in at):
            try:
                sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                unknown = error
                continue
            sock.setblocking(False)
            found.append(sock)
            port = port or int(sock.getsockname()[1])
        if not found and unknown is not None:
            raise unknown
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found


async def _accept(
    connections: Connections,
    sock: socket.socket,
    context: ssl.SSLContext | None,
    shaking: set[asyncio.Task[None]],
) -> None:
    """Not the loop's own server: that knows no limit of handshakes, and each may keep a descriptor for a minute."""
    loop = asyncio.get_running_loop()
    async for conn, _ in accepted(sock):
        if len(shaking) >= connections.most:
            connections.num_refused += 1
            conn.close()
            continue
        # One that fails in a way nobody thought of is told by the loop, and ends no other.
        task = loop.create_task(_open(connections, conn, context), name="API connection")
        shaking.add(task)
        task.add_done_callback(shaking.discard)


async def _open(connections: Connections, conn: socket.socket, context: ssl.SSLContext | None) -> None:
    """Return when it is the connections' own, or over."""
    with contextlib.suppress(OSError):
        await handed_over(conn, connections, context)
