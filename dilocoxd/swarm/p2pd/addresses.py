"""Addresses as people write them: ``/ip4/1.2.3.4/tcp/31337/p2p/Qm...``, ``host:31337/Qm...`` or just ``host:31337``."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

import base58

from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.wire.records import is_peer_id

_HOST_PORT: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s/:\[\]]+)):(?P<port>[0-9]{1,5})(?:/(?P<peer>\S+))?"
)
_MULTIADDR: Final = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^\s/]+)/(?P<transport>tcp|udp)/(?P<port>[0-9]{1,5})(?P<rest>/.*)?"
)
_CODES: Final = {
    "ip4": 4, "tcp": 6, "ip6": 41, "dns": 53, "dns4": 54, "dns6": 55, "p2p-circuit": 290, "p2p": 421,
}  # fmt: skip
"""Protocol numbers of the multiaddr table, for those that appear in our addresses."""
REMEDY: Final = "write it as dilocoxd start printed it: /ip4/203.0.113.7/tcp/31337/p2p/Qm... or host:31337"


@dataclass(frozen=True, slots=True)
class Address:
    """One place where a peer may be found."""

    text: str
    """As the operator wrote it."""
    host: str
    """IP address or name."""
    port: int
    peer: PeerId | None
    """None: whoever answers there."""

    @property
    def is_ip(self) -> bool:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_address(text: str) -> Address:
    """The address in `text`. Raises ConfigError with what is wrong and how to write it."""
    found = _MULTIADDR.fullmatch(text)
    if found is not None:
        if found["transport"] != "tcp" or "quic" in (found["rest"] or ""):
            raise ConfigError(f"address {text!r} is not TCP, the only transport used here; {REMEDY}")
        peer = (found["rest"] or "").removeprefix("/p2p/") or None
        host = found["host"]
    else:
        found = _HOST_PORT.fullmatch(text)
        if found is None:
            raise ConfigError(f"address {text!r} cannot be understood; {REMEDY}")
        peer, host = found["peer"], found["v6"] or found["host"]
    if not 1 <= int(found["port"]) <= 65535:
        raise ConfigError(f"address {text!r} has port {found['port']}, not 1 to 65535; {REMEDY}")
    if peer is not None and not is_peer_id(peer):
        raise ConfigError(f"address {text!r} ends in {peer!r}, which is no peer id; {REMEDY}")
    return Address(text, host, int(found["port"]), PeerId(peer) if peer else None)


def multiaddr(ip: str, port: int) -> str:
    """/ip4/... or /ip6/... form of an IP address and port."""
    return f"/ip{ipaddress.ip_address(ip).version}/{ip}/tcp/{port}"


def can_reach_others(address: str) -> bool:
    """Whether a multiaddr may mean anything to another machine (not loopback, not unspecified)."""
    found = _MULTIADDR.fullmatch(address)
    if found is None:
        return False
    try:
        ip = ipaddress.ip_address(found["host"])
    except ValueError:
        return True
    return not (ip.is_loopback or ip.is_unspecified)


def circuit_through(relay: str) -> str:
    """Address of whoever has a place at this relay (without its /p2p/ part)."""
    return f"{relay}/p2p-circuit"


def multiaddr_bytes(text: str) -> bytes:
    """Binary form, as p2pd wants it. Raises ValueError.

    hivemind's own encodes the peer id of a relay as a CID, which libp2p refuses: nobody could be dialled through one.
    """
    encoded = bytearray()
    parts = iter(text.split("/")[1:])
    for name in parts:
        if name not in _CODES:
            raise ValueError(f"{text!r} has the part {name!r}, which no address here has")
        encoded += _varint(_CODES[name])
        if name != "p2p-circuit":
            encoded += _value_bytes(name, next(parts, ""))
    return bytes(encoded)


def _value_bytes(name: str, value: str) -> bytes:
    match name:
        case "ip4":
            return ipaddress.IPv4Address(value).packed
        case "ip6":
            return ipaddress.IPv6Address(value).packed
        case "tcp":
            return int(value).to_bytes(2, "big")
        case "p2p":
            data = base58.b58decode(value)
        case _:
            data = value.encode("ascii")
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
