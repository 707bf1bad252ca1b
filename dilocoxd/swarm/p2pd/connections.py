"""Reads the addresses of connections as p2pd lists them: which way a peer is reached, directly or through a relay."""

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import base58

from dilocoxd.ids import PeerId

_FIXED: Final = {4: ("ip4", 4), 6: ("tcp", 2), 41: ("ip6", 16)}
_SIZED: Final = {53: "dns", 54: "dns4", 55: "dns6", 421: "p2p"}
_CIRCUIT: Final = 290
NETWORKS_KEPT: Final = 4096
_DIRECT: Final = re.compile(r"/ip[46]/([^/]+)/tcp/[0-9]+")


def address_text(data: bytes) -> str:
    """The text of a binary multiaddress; what is of no protocol that is used here ends it with `/...`.

    >>> address_text(bytes([4, 10, 0, 0, 1, 6, 0, 80]))
    '/ip4/10.0.0.1/tcp/80'
    """
    text, rest = "", data
    while rest:
        code, rest = _varint(rest)
        if code == _CIRCUIT:
            text += "/p2p-circuit"
        elif code in _FIXED:
            name, size = _FIXED[code]
            value, rest = rest[:size], rest[size:]
            shown = str(int.from_bytes(value, "big")) if name == "tcp" else str(ipaddress.ip_address(value))
            text += f"/{name}/{shown}"
        elif code in _SIZED:
            size, rest = _varint(rest)
            value, rest = rest[:size], rest[size:]
            shown = base58.b58encode(value).decode("ascii") if code == 421 else value.decode("ascii", "replace")
            text += f"/{_SIZED[code]}/{shown}"
        else:
            return text + "/..."
    return text


def ip_of(address: bytes) -> str:
    """IP address of a binary multiaddress that is one with a TCP port; empty for all others (relays).

    >>> ip_of(bytes([4, 10, 0, 0, 1, 6, 0, 80])), ip_of(bytes([53, 1, 97, 6, 0, 80]))
    ('10.0.0.1', '')
    """
    found = _DIRECT.fullmatch(address_text(address))
    return found[1] if found is not None else ""


def is_relayed(address: str) -> bool:
    """Whether a connection with this remote address goes through another peer."""
    return "/p2p-circuit" in address


def is_only_relayed(ends: Sequence[bytes]) -> bool:
    """Whether all connections to a peer, given by their remote ends, go through others; False if there is none."""
    return bool(ends) and all(is_relayed(address_text(data)) for data in ends)


def _varint(data: bytes) -> tuple[int, bytes]:
    number, shift = 0, 0
    for place, byte in enumerate(data):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, data[place + 1 :]
    return number, b""


class Networks:
    """The network that each peer's newest stream came from, of the newest NETWORKS_KEPT peers."""

    def __init__(self) -> None:
        self._networks: OrderedDict[PeerId, str] = OrderedDict()

    def note(self, peer: PeerId, network: str) -> None:
        """A stream of `peer` came from there."""
        self._networks[peer] = network
        self._networks.move_to_end(peer)
        while len(self._networks) > NETWORKS_KEPT:
            self._networks.popitem(last=False)

    def of(self, peer: PeerId) -> str:
        """Empty: through a relay, or none."""
        return self._networks.get(peer, "")
