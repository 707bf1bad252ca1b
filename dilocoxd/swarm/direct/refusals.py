"""Whether anybody is still there once a data connection to a peer has ended (protocol/05-discovery.md, D11.4).

The host of a process that died ends all its connections and refuses others: an answer, within a round trip, that no
slow link and no busy machine can give in its place. A firewall can, so p2pd must have lost the peer as well.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from dilocoxd.config.addresses import socket_family
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.routes import Route

LOOK_AFTER_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses: p2pd may notice a moment later, and what the peer had said before may be read after the first refusal."""
ANSWER_S: Final = 2.0


async def look(
    route: Route, is_connected: Callable[[PeerId], Awaitable[bool]], on_gone: Callable[[PeerId], None]
) -> None:
    """Tell `on_gone` as long as nobody is there; return when somebody is, or cannot be told from nobody."""
    for pause_s in LOOK_AFTER_S:
        await asyncio.sleep(pause_s)
        if await is_connected(route.peer):
            continue
        if not await is_refused(route.host, route.port):
            return
        on_gone(route.peer)


async def is_refused(ip: str, port: int) -> bool:
    """Whether the host answers that nobody listens there. Silence, and all other errors, say nothing."""
    family = socket_family(ip)
    with contextlib.suppress(TimeoutError, OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_connect(sock, (ip, port))
        except ConnectionRefusedError:
            return True
    return False
