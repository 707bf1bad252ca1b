"""Ways to the nodes of other sites, for contributions to segments that they sum (protocol S12).

Connections of their own beside those to the sites; a port is tried in the background, and while it does not answer, or
from the moment on at which anything fails, its site gets the payload itself. Source:
docs/adr/0046-nodes-receive-contributions.md.
"""

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from dilocoxd.config.addresses import host_and_port
from dilocoxd.daemon.node.no_streams import NoStreams
from dilocoxd.daemon.peers.port_book import PortBook
from dilocoxd.ids import PeerId, RunId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.listener import DataListener
from dilocoxd.swarm.direct.nodes import PORTS_SINCE_MINOR, site_of, way_to_node
from dilocoxd.swarm.direct.plane import ROUTES_MAX, DataPlane
from dilocoxd.swarm.direct.routes import OtherNode, Route
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.streams import StreamGate
from dilocoxd.wire.messages import NodePort, SegmentHeader

LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SendingSite:
    """Who sends."""

    credentials: Credentials
    run_id: RunId
    doors: Doorkeeper
    """Shows our membership."""
    data_port: Callable[[], int]
    key_of: Callable[[PeerId], bytes]
    """DER of a peer's public key."""
    in_touch: Callable[[], Set[PeerId]]
    connections: int
    """To one node."""
    lanes: int


class OtherPorts:
    """`run` until cancelled. Implements NodeWays (daemon/round/transfers.py)."""

    def __init__(self, book: PortBook, site: SendingSite, bulk: BulkSender) -> None:
        """`bulk`: to the sites themselves; limits and measures of it hold for both."""
        self._book, self._site = book, site
        self._known: dict[PeerId, NodePort] = {}
        """By way, as long as its site is in touch: whoever names a port, none, and it again has us try no oftener."""
        self._named: set[PeerId] = set()
        """Ways that are in the newest word of their site."""
        listener = DataListener((), site.credentials, _serve_nobody)
        self._plane = DataPlane(
            site.credentials, listener, self._hosts, self._key_of, str(site.run_id), site.connections
        )  # fmt: skip
        self._plane.on_hosts = self._on_hosts
        self._plane.minor_min, self._plane.slot_wait_s = PORTS_SINCE_MINOR, None
        gate = StreamGate(NoStreams(), site.run_id, PeerGuard(asyncio.get_running_loop().time), site.doors)
        gate.data, gate.data_port = self._plane, site.data_port
        self.sender = BulkSender(gate, bulk.throttle, lanes_max=site.lanes)
        self.sender.speeds = bulk.speeds

    async def _hosts(self, way: PeerId) -> list[str]:
        known = self._known.get(way)
        return list(known.hosts) if known is not None else []

    def _key_of(self, way: PeerId) -> bytes:
        return self._site.key_of(site_of(way)) if way in self._known else b""

    def _on_hosts(self, heard: HostsHeard) -> None:
        """What is on its way there goes to the site itself at once, and not when a time-out is over."""
        for way in heard.silent & self._known.keys():
            self._plane.drop(way)
            self._plane.meet(way, self._known[way].port)

    async def run(self) -> None:
        """Try the ports of which other sites have told us."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._plane.run(lambda: self._named), name="data connections to nodes")
            while True:
                self._look()
                await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        in_touch = self._site.in_touch()
        self._book.keep(in_touch)
        for way in [way for way in self._known if site_of(way) not in in_touch]:
            del self._known[way]
            self._plane.drop(way)
        named = {way_to_node(peer, number): port for (peer, number), port in self._book.all().items()}
        self._named = set(named)
        routes = self._plane.routes()
        if len(routes) >= ROUTES_MAX:  # those that are named no more, or had more than their part, give way
            for way in routes.keys() - self._named:
                self._plane.drop(way)
        for way, port in named.items():
            if self._known.get(way) != port or way not in routes:
                self._known[way] = port
                self._plane.meet(way, port.port)

    def way_to(self, peer: PeerId, header: SegmentHeader) -> PeerId | None:
        """See NodeWays."""
        number = self._book.number(peer, header)
        way = way_to_node(peer, number) if number is not None else None
        return way if way is not None and self._plane.view(way).is_data else None

    def nodes_of(self, peer: PeerId) -> tuple[OtherNode, ...]:
        """Those that `peer` tells of, in its order."""
        found = []
        for number, port in enumerate(self._book.of(peer)):
            view = self._plane.view(way_to_node(peer, number))
            addresses = tuple(host_and_port(host, port.port) for host in port.hosts)
            found.append(OtherNode(addresses, port.first, port.stop, view.is_data, view.reason))
        return tuple(found)

    def routes(self) -> Mapping[PeerId, Route]:
        """By way; to be read only."""
        return {way: route for way, route in self._plane.routes().items() if way in self._named}


async def _serve_nobody(peer: PeerId, protocol: str, link: DataLink, network: str) -> None:
    raise AssertionError("nobody comes this way")
