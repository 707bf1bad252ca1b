"""Decides which addresses people may type, and what each means as a multiaddress: IP, name, with or without a port.

Understood are `203.0.113.7`, `head.example:31337`, `[2001:db8::1]:31337`, `host:31337/Qm...` and
`/ip4/203.0.113.7/tcp/31337/p2p/Qm...`; without a port the usual one is meant.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from dilocoxd.errors import ConfigError
from dilocoxd.ids import is_peer_id

DEFAULT_PORT: Final = 31337
EXAMPLES: Final = "write it as 203.0.113.7, host.example:31337 or /ip4/203.0.113.7/tcp/31337/p2p/Qm..."
_MULTIADDR: Final = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^\s/]+)/(?P<transport>[a-z]+)/(?P<port>[^\s/]+)(?P<rest>/\S*)?"
)
_PEER: Final = re.compile(r"/p2p/[^\s/]+")
_HOST_PORT: Final = re.compile(
    r"(?:\[(?P<v6>[^\s/\[\]]+)\]|(?P<host>[^\s/:\[\]]+))(?::(?P<port>[0-9]{1,9}))?(?:/(?P<peer>\S+))?"
)
_LOCAL: Final = {
    "127.0.0.0/8": "means this machine alone",
    "::1/128": "means this machine alone",
    "10.0.0.0/8": "is of a private network",
    "172.16.0.0/12": "is of a private network",
    "192.168.0.0/16": "is of a private network",
    "fc00::/7": "is of a private network",
    "100.64.0.0/10": "is of a provider's or a VPN's own network",
    "169.254.0.0/16": "is of a single link",
    "fe80::/10": "is of a single link",
}
"""Networks whose addresses do not lead here from everywhere (RFC 1918, 4193, 6598, 3927, 4291), and what they are."""
_NAME: Final = re.compile(r"(?=.{1,253}$)(?:(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.)*(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.?")


@dataclass(frozen=True, slots=True)
class TypedAddress:
    """One address, taken apart."""

    kind: str
    """ip4, ip6, dns, dns4 or dns6."""
    host: str
    """IP address or name."""
    port: int | None
    """None: it names none."""
    peer: str
    """The peer that it names, or empty."""

    def multiaddr(self, default_port: int = DEFAULT_PORT) -> str:
        """As a multiaddress, without the peer."""
        return f"/{self.kind}/{self.host}/tcp/{default_port if self.port is None else self.port}"


def ip_version(host: str) -> Literal[4, 6] | None:
    """4 or 6; None: it is no IP address (or one of a single link, which means nothing to others)."""
    try:
        return None if "%" in host else ipaddress.ip_address(host).version
    except ValueError:
        return None


def socket_family(ip: str) -> socket.AddressFamily:
    """Of sockets that reach this IP address."""
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def host_and_port(host: str, port: int) -> str:
    """As people write and programs read both together.

    >>> host_and_port("203.0.113.7", 80), host_and_port("2001:db8::1", 80)
    ('203.0.113.7:80', '[2001:db8::1]:80')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def kind_of_host(host: str) -> str:
    """What stands before `host` in a multiaddress."""
    version = ip_version(host)
    return f"ip{version}" if version else "dns"


def local_words(host: str) -> str:
    """Why `host` does not lead to the same machine from everywhere; empty: it may, or it is a name.

    >>> local_words("192.168.1.5"), local_words("203.0.113.7")
    ('is of a private network', '')
    """
    if ip_version(host) is None:
        return ""
    ip = ipaddress.ip_address(host)
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return next((words for network, words in _LOCAL.items() if ip in ipaddress.ip_network(network)), "")


def leads_here(address: str) -> bool:
    """Whether a multiaddr may lead to the same machine from everywhere, and without a relay.

    >>> leads_here("/ip4/203.0.113.7/tcp/31337"), leads_here("/ip4/192.168.1.5/tcp/31337")
    (True, False)
    """
    try:
        return not local_words(read_address(address).host)
    except ValueError:  # a way through a relay among them
        return False


def read_address(text: str) -> TypedAddress:
    """`text`, taken apart. Raises ValueError with the problem and how to write it."""
    kind, host, port, peer = _split_multiaddr(text) if text.startswith("/") else _split_short(text)
    if not is_host(host):
        raise ValueError(f"address {text!r}: {host!r} is neither an IP address nor the name of a machine; {EXAMPLES}")
    if port is not None and not (port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"address {text!r} has port {port}, not 1 to 65535; {EXAMPLES}")
    return TypedAddress(kind, host, int(port) if port is not None else None, peer)


def _split_multiaddr(text: str) -> tuple[str, str, str | None, str]:
    found = _MULTIADDR.fullmatch(text)
    if found is None:
        raise ValueError(f"address {text!r} cannot be understood; {EXAMPLES}")
    rest = found["rest"] or ""
    if found["transport"] != "tcp" or "quic" in rest:
        raise ValueError(f"address {text!r} is not TCP, the only transport used here; {EXAMPLES}")
    if rest and _PEER.fullmatch(rest) is None:
        raise ValueError(f"address {text!r} goes on with {rest!r}, which is no peer id; {EXAMPLES}")
    kind = found["kind"]
    if kind_of_host(found["host"]) != ("dns" if kind.startswith("dns") else kind):
        raise ValueError(f"address {text!r} says {kind}, but {found['host']!r} is something else; {EXAMPLES}")
    return kind, found["host"], found["port"], rest.removeprefix("/p2p/")


def _split_short(text: str) -> tuple[str, str, str | None, str]:
    if ip_version(text) == 6:
        return "ip6", text, None, ""
    if is_peer_id(text):
        raise ValueError(f"address {text!r} is a peer id, which says who but not where; {EXAMPLES}")
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        raise ValueError(f"address {text!r} cannot be understood; {EXAMPLES}")
    host = found["v6"] or found["host"]
    return kind_of_host(host), host, found["port"], found["peer"] or ""


def is_host(text: str) -> bool:
    """Whether it is an IP address, or may be the name of a machine (only digits and dots are none)."""
    if ip_version(text) is not None:
        return True
    return _NAME.fullmatch(text) is not None and not text.replace(".", "").isdecimal()


def listen_ip(host: str) -> str:
    """The IP address to listen on: `host`, or what its name means on this machine. Raises ConfigError."""
    if ip_version(host) is not None:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"network.host = {host!r} has no address ({error.strerror}); give an IP address of this machine with --host"
        ) from error
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def listened_on(host: str, section: str) -> tuple[str, ...]:
    """Addresses of the sockets that `host` of `network` or `api` means, each of one family.

    For other sites `::` is both families, a socket each; for the API it is IPv6 alone, as asyncio opens it.
    """
    return ("::", "0.0.0.0") if host == "::" and section == "network" else (host,)


def are_one(hosts: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether both cannot listen on one port: as they are written, an unspecified address is all of its family."""
    return any(
        host == other or ((":" in host) == (":" in other) and bool({"::", "0.0.0.0"} & {host, other}))
        for host, other in product(hosts, others)
    )
