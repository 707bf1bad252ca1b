"""Sockets of data connections: where we listen, and what the kernel is told about each connection.

Socket buffers are left to the kernel, which sizes them to what the link carries (tcp_rmem, tcp_wmem); a size set here
would end that, and be cut to net.core.rmem_max. Several connections to a peer make up for the limit of each.
"""

import contextlib
import socket
from collections.abc import Sequence
from typing import Final

from dilocoxd.config.addresses import socket_family
from dilocoxd.errors import ConfigError, reason_of

CONGESTION_CONTROL: Final = b"bbr"
"""Used where the kernel offers it: fills a long link without filling its queues, and is not slowed by an idle phase or
a single loss. Elsewhere the kernel's default stays, mostly cubic."""
UNSENT_BYTES_MAX: Final = 256 * 1024
"""In the kernel and not on the way yet: what is queued there helps nothing and delays whatever else we decide."""
KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
"""Seconds, seconds, times: a way that is gone is noticed before the next round needs it. TCP_USER_TIMEOUT is not set:
it counts from the first loss that is not made good, whatever is acknowledged since, and ended connections of thin lines
that moved all the time. Who waits for an answer gives up by what moves (kernel.py)."""
BACKLOG: Final = 128
CLOSED: Final = (OSError, ValueError)
"""What asyncio's sockets, and uvloop's, raise once they are closed."""


def tune(sock: socket.socket) -> None:
    """Options of one data connection; those that this kernel does not offer are left out."""
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in KEEP_ALIVE),
    ]
    for level, option, value in options:
        with contextlib.suppress(*CLOSED):
            sock.setsockopt(level, option, value)
    with contextlib.suppress(*CLOSED):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)


def listen_on(ips: Sequence[str], port: int) -> list[socket.socket]:
    """Listening sockets, one for each address, all with one port; 0: the kernel chooses it. Raises ConfigError."""
    found: list[socket.socket] = []
    try:
        for ip in ips:
            family = socket_family(ip)
            sock = socket.socket(family, socket.SOCK_STREAM)
            found.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((ip, port))
            sock.listen(BACKLOG)
            port = port or int(sock.getsockname()[1])
    except (OSError, OverflowError) as error:
        for sock in found:
            sock.close()
        raise ConfigError(
            f"cannot listen on port {port} for data connections ({reason_of(error)});"
            " stop the other program, give another port (network.data_port in site.toml), or turn data connections off"
            " (network.data_connections = 0)"
        ) from error
    return found
