"""How p2pd is to be run, and its ports: found free, and nobody else's until it listens."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.ids import PeerId


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How to run p2pd."""

    identity_path: Path
    socket_dir: Path
    """Directory of our own for p2pd's control sockets."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/31337",)
    """TCP multiaddrs only: p2pd loses most answers over QUIC."""
    announce: tuple[str, ...] = ()
    """What others shall dial instead of the addresses p2pd finds on our interfaces."""
    hint_key: str = "dilocoxd"
    """DHT key of this run's records."""
    relays: tuple[str, ...] = ()
    """Multiaddrs of public peers that relay for us when we are behind NAT."""
    relay_for_others: bool = False
    """Carry the bytes of peers that cannot be reached: p2pd does so for anybody who asks."""
    map_port: bool = False
    """Ask the router for a port mapping (UPnP, NAT-PMP)."""
    reachability: Literal["public", "private"] | None = None
    """Whether others can open connections to us. None: p2pd finds out, which
    takes a minute and needs public addresses all around."""
    startup_timeout_s: float = 60.0
    hole_punching: bool = True
    """Open direct connections through NATs to whom we meet at a relay; p2pd's AutoNAT service comes with it."""
    may_ask: Callable[[PeerId], bool] = lambda peer: True
    """Whose DHT requests are answered."""
    is_evicted: Callable[[PeerId], bool] = lambda peer: False
    """Whom the DHT sends nothing."""
    p2pd_memory_mib: int = 128
    """Soft limit of p2pd's heap (GOMEMLIMIT)."""
    log_path: Path | None = None
    """File for what p2pd says; None: nobody reads it."""


@contextlib.contextmanager
def hold_ports(listen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The listen addresses with port 0 replaced by a free one. Raises ConfigError if a port is taken.

    p2pd shares its ports (SO_REUSEPORT), so two of one user that were told the same one would both listen, and each
    get some of the other's connections. Hence what was found stays bound until p2pd listens: sockets that share can
    join it, but nobody is given it as a free one, and nobody else's check finds it free.
    """
    with contextlib.ExitStack() as held:
        yield tuple(_hold(address, held) for address in listen)


def _hold(address: str, held: contextlib.ExitStack) -> str:
    parts = address.split("/")
    if len(parts) != 5 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp" or not parts[4].isdigit():
        raise ConfigError(
            f"listen address {address!r} is of no known form; write /ip4/ADDRESS/tcp/PORT or /ip6/ADDRESS/tcp/PORT"
        )
    family = socket.AF_INET if parts[1] == "ip4" else socket.AF_INET6
    probe = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # over what lingers there, but no listener
    if family == socket.AF_INET6:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        probe.bind((parts[2], int(parts[4])))
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {parts[2]} port {parts[4]} ({reason_of(error)});"
            " stop the other program or give another port with --port (network.port in site.toml)"
        ) from error
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # only now: the check is not to share
    return "/".join([*parts[:4], str(probe.getsockname()[1])])
