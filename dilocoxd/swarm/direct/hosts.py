"""Where a peer's data port may be: first where its p2pd is connected to ours, then what its addresses say."""

import asyncio
import socket
from dataclasses import dataclass
from typing import Final, Protocol

from dilocoxd.config.addresses import ip_version, read_address
from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.connections import ip_of, is_relayed

RESOLVE_S: Final = 5.0


class ConnectedNode(Protocol):
    """The part of kademlia.Node that is used here."""

    async def connections(self) -> dict[PeerId, tuple[bytes, ...]]: ...


class KnownPlaces(Protocol):
    """The part of contacts.Whereabouts that is used here."""

    def addresses_of(self, peer: PeerId) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class DataHosts:
    """Asked before a data port is tried."""

    node: ConnectedNode
    places: KnownPlaces

    async def find(self, peer: PeerId) -> list[str]:
        """IP addresses, best first. Raises PeerError when p2pd is gone."""
        seen = [ip_of(address) for address in (await self.node.connections()).get(peer, ())]
        found = [ip for ip in seen if ip]
        for address in self.places.addresses_of(peer):
            if not is_relayed(address):
                found += await _ips_of(address)
        return list(dict.fromkeys(found))

    async def is_connected(self, peer: PeerId) -> bool:
        """Whether p2pd has a connection to it, or cannot say."""
        try:
            return peer in await self.node.connections()
        except PeerError:
            return True  # ours is being started again


async def _ips_of(address: str) -> list[str]:
    try:
        host = read_address(address).host
        if ip_version(host) is not None:
            return [host]
        async with asyncio.timeout(RESOLVE_S):
            answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (ValueError, OSError, TimeoutError, UnicodeError):
        return []  # what somebody's record says need not make sense
    return [str(answer[4][0]) for answer in answers]
