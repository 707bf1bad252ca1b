"""Takes what connects to a listening socket, for as long as anybody listens, and hands it to the event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

ACCEPT_PAUSE_S: Final = 0.2
HANDSHAKE_S: Final = 10.0
"""Of TLS on a long and lossy link: some round trips, and one packet that is lost twice."""
SHUTDOWN_S: Final = 3.0


async def accepted(listening: socket.socket) -> AsyncIterator[tuple[socket.socket, Any]]:
    """(connection, address of its other end) of each that comes. One that is gone again ends nothing, nor does a
    process that has no descriptors left: it tries again after ACCEPT_PAUSE_S."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            found = await loop.sock_accept(listening)
        except OSError:
            await asyncio.sleep(ACCEPT_PAUSE_S)
            continue
        yield found


async def handed_over(
    conn: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None
) -> Any:
    """The transport of a connection that came, after its handshake if there is a context (None: no TLS).
    `conn` is the transport's then, and closed if this fails. Raises OSError."""
    limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S} if context is not None else {}
    transport = None
    try:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(protocol, conn, ssl=context, **limits)
    finally:
        if transport is None:
            with contextlib.suppress(OSError):
                conn.close()
    return transport
