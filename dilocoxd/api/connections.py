"""Opens the listening socket and bounds what connections may cost: how many, how long idle, how long for one request.

aiohttp closes idle keep-alive connections; what it does not bound is a client that connects and sends nothing, sends a
header byte by byte, or never reads the answer. Every second those are looked for.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import web

from dilocoxd.api.responses.problems import Handler
from dilocoxd.config.api import ApiSection
from dilocoxd.errors import ConfigError, reason_of

SILENT_S: Final = 30.0
"""A connection without a new request for this long is closed, whatever it is doing (event streams excepted)."""
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
        assert isinstance(transport, asyncio.Transport)
        transport.write(REFUSAL)
        transport.close()


class Connections:
    """Protocol factory with a limit, and memory of who asked when."""

    def __init__(self, connections_max: int, silent_s: float = SILENT_S) -> None:
        self._connections_max = connections_max
        self._silent_s = silent_s
        self._asked_at: dict[Any, float] = {}
        self._streams: set[Any] = set()
        self.server: Any = None
        """aiohttp's own protocol factory."""
        self.num_refused = 0

    def __call__(self) -> asyncio.BaseProtocol:
        """Protocol of a new connection."""
        if len(self.server.connections) >= self._connections_max:
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
    loop = asyncio.get_running_loop()
    context = tls_context(section)
    try:
        server = await loop.create_server(
            connections, section.host, section.port, reuse_address=True, backlog=128, ssl=context
        )
    except OSError as error:
        raise ConfigError(
            f"the HTTP API cannot listen on {section.host} port {section.port} ({error.strerror or error}); "
            "give another port with --api-port (api.port in site.toml) or stop the other program"
        ) from error
    try:
        bound = server.sockets[0].getsockname()
        yield str(bound[0]), int(bound[1])
    finally:
        server.close()
