"""Takes what connects to a listening socket, for as long as anybody listens."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

ACCEPT_PAUSE_S: Final = 0.2


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
