"""Ports that other sites name: each site has its part of the ways, however many the others name. S12.2."""

from pathlib import Path

from dilocoxd.daemon.node.no_streams import NoStreams
from dilocoxd.daemon.peers.port_book import PORTS_MAX, PortBook
from dilocoxd.daemon.uploads.other_ports import OtherPorts, SendingSite
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.nodes import site_of
from dilocoxd.swarm.direct.plane import ROUTES_MAX
from dilocoxd.swarm.discovery.identity import create
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.streams import StreamGate
from dilocoxd.wire.messages import NODE_PORTS_MAX, DataPorts, NodePort
from tests.unit.swarm.direct.ends import RUN

LIARS = [PeerId(f"liar{number}") for number in range(ROUTES_MAX // NODE_PORTS_MAX)]
HONEST = PeerId("site")


def ports(number: int) -> DataPorts:
    """Of so many nodes."""
    return DataPorts(tuple(NodePort(index, index + 1, 7000 + index, ("192.0.2.1",)) for index in range(number)))


class Site:
    """One that is in touch with all of them, and tries none."""

    def __init__(self, folder: Path) -> None:
        identity = create(folder / "a.key")
        self.book, self.in_touch = PortBook(), {*LIARS, HONEST}
        site = SendingSite(
            Credentials(identity), RUN, Doorkeeper(), lambda: 0, lambda peer: identity.public_key_der,
            lambda: self.in_touch, 8, 4,
        )  # fmt: skip
        gate = StreamGate(NoStreams(), RUN, PeerGuard(lambda: 0.0))
        self.others = OtherPorts(self.book, site, BulkSender(gate))

    def number_of(self, site: PeerId) -> int:
        self.others._look()
        return sum(site_of(way) == site for way in self.others.routes())


async def test_members_that_name_dozens_of_ports_push_out_those_of_nobody(tmp_path: Path) -> None:
    it = Site(tmp_path)
    for liar in LIARS:
        it.book.take(liar, ports(NODE_PORTS_MAX))
    assert [it.number_of(liar) for liar in LIARS] == [NODE_PORTS_MAX] * len(LIARS), "nobody else wants the room"
    it.book.take(HONEST, ports(8))
    assert it.number_of(HONEST) == 8
    assert sum(it.number_of(liar) for liar in LIARS) == PORTS_MAX - 8
    it.book.take(HONEST, ports(NODE_PORTS_MAX))
    assert it.number_of(HONEST) >= PORTS_MAX // (len(LIARS) + 1)
    it.in_touch -= set(LIARS[:2])
    assert it.number_of(HONEST) == NODE_PORTS_MAX, "what had to give way comes back"
    assert len(it.others.routes()) <= ROUTES_MAX >= PORTS_MAX


async def test_site_that_comes_first_gives_way_likewise(tmp_path: Path) -> None:
    it = Site(tmp_path)
    it.book.take(HONEST, ports(4))
    assert it.number_of(HONEST) == 4
    for liar in LIARS:
        it.book.take(liar, ports(NODE_PORTS_MAX))
    assert it.number_of(HONEST) == 4
    for liar in LIARS:  # whoever says it again gets no more of it
        it.book.take(liar, ports(NODE_PORTS_MAX))
    assert it.number_of(HONEST) == 4
