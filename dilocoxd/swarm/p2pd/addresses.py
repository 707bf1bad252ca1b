"""Addresses of peers, and their binary form for p2pd. How people may write one is in config/addresses.py."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import base58

from dilocoxd.config.addresses import DEFAULT_PORT, EXAMPLES, ip_version, leads_here, read_address
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId, is_peer_id

_MULTIADDR: Final = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^\s/]+)/(?P<transport>tcp|udp)/(?P<port>[0-9]{1,5})(?P<rest>/.*)?"
)
_CODES: Final = {
    "ip4": 4, "tcp": 6, "ip6": 41, "dns": 53, "dns4": 54, "dns6": 55, "p2p-circuit": 290, "p2p": 421,
}  # fmt: skip
"""Protocol numbers of the multiaddr table, for those that appear in our addresses."""


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
        return ip_version(self.host) is not None


def parse_address(text: str) -> Address:
    """The address in `text`. Raises ConfigError with what is wrong and how to write it."""
    try:
        typed = read_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if typed.peer and not is_peer_id(typed.peer):
        raise ConfigError(f"address {text!r} ends in {typed.peer!r}, which is no peer id; {EXAMPLES}")
    return Address(text, typed.host, typed.port or DEFAULT_PORT, PeerId(typed.peer) if typed.peer else None)


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


def by_reach(addresses: Iterable[str]) -> tuple[str, ...]:
    """Multiaddrs, those first that others can use from everywhere, then those that other machines can use."""
    return tuple(sorted(addresses, key=lambda one: (not can_reach_others(one), not leads_here(one))))


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
