"""A site with a part on a node, to which another site brings a contribution: both ends, over loopback.

Without processes: what head and node say to each other is encoded and decoded, and goes from one to the other at once.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dilocoxd.daemon.chain.payload_map import PayloadMaps, Place
from dilocoxd.daemon.node.part_receipts import PartReceipts
from dilocoxd.daemon.node.uplink import Uplink
from dilocoxd.daemon.peers.port_book import PortBook
from dilocoxd.daemon.round.transfers import Transfers
from dilocoxd.daemon.uploads.inlets import NodeInlets, SiteInlets
from dilocoxd.daemon.uploads.other_ports import OtherPorts, SendingSite
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.errands import Errands
from dilocoxd.daemon.workers.outer_worker import _Session
from dilocoxd.errors import WireError
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.orders import SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, SegmentKey
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.nodes import certify, way_to_node
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.wire.local.buffers import INBOX, OUTBOX, Buffer
from dilocoxd.wire.local.inlets import PayloadHeard, PayloadHere, PayloadsThere
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.uploads import UploadPass
from dilocoxd.wire.messages import PEER_MESSAGES, DataPorts, SegmentHeader
from tests.unit.daemon.node.test_uploads import AT, LENGTH, WAIT_S, Taker, until
from tests.unit.swarm.direct.ends import RUN, End, two

SEGMENT = 1
PLACE = Place(INBOX, AT, LENGTH)


class ReceivingNode:
    """A node with one part, as the head knows it (`errands`, `on_attached`) and as it is."""

    def __init__(self) -> None:
        self.uplink = Uplink(head="127.0.0.1")
        self.buffers = Buffers()
        self.buffers.provide([Buffer(INBOX, AT + LENGTH)])
        self.on_attached: Any = None
        self.errands: Errands | None = None
        self.said: list[Any] = []
        """By the head, in order."""
        self.begin()

    def begin(self) -> None:
        """A life of the part, with the memory of the one before."""
        self.receipts = PartReceipts(self.uplink.inlet, self.buffers, lambda said: self.to_head(said))
        connection: Any = self
        self.session = _Session(connection)
        self.errands = self.session.errands
        if self.on_attached is not None:
            self.on_attached(self.errands)

    def lose(self) -> None:
        """Its connection ends, and with it the life."""
        self.session.on_ended("its cable was cut")
        self.errands = None
        self.receipts.leave()

    def send(self, message: Any) -> None:
        """Of the head, as a connection does; a relay keeps some of it to itself."""
        told = LOCAL_MESSAGES.decode(LOCAL_MESSAGES.encode(message))
        self.said.append(told)
        if not isinstance(told, PayloadHere | PayloadsThere):
            assert self.receipts.take(told)

    def to_head(self, message: Any) -> None:
        if self.errands is not None:
            self.session.on_message(LOCAL_MESSAGES.decode(LOCAL_MESSAGES.encode(message)))

    def data(self) -> bytes:
        return self.buffers.read(INBOX, AT, LENGTH)


class HeadOfNode:
    """What the head decides with, as a test wants it."""

    def __init__(self, node: ReceivingNode, end: End, other: PeerId) -> None:
        self.refusal: Exception | None = None
        self.banned: WireError | None = None
        self.places: dict[PeerId, Place] = {}
        """Where another one is than PLACE."""
        self.arrived: list[tuple[PeerId, SegmentHeader]] = []
        self.rejected: list[tuple[PeerId, str]] = []
        self.heard_first: list[bool] = []
        self._node, self.callers = node, {other: end.keys[other]}

    def place(self, peer: PeerId, header: SegmentHeader) -> Place:
        if self.refusal is not None:
            raise self.refusal
        return self.places.get(peer, PLACE)

    def received(self, peer: PeerId, header: SegmentHeader) -> None:
        self.arrived.append((peer, header))
        self.heard_first.append(isinstance(self._node.said[-1], PayloadHeard))

    def admit(self, peer: PeerId) -> None:
        if self.banned is not None:
            raise self.banned


@dataclasses.dataclass
class Receiving:
    """Site `a` with its node, and the other site `b`, which sends."""

    a: End
    b: End
    node: ReceivingNode
    head: HeadOfNode
    taker: Taker
    """Of `a` itself."""
    inlets: NodeInlets
    book: PortBook
    others: OtherPorts
    transfers: Transfers
    """Of `b`."""
    told: "asyncio.Queue[Any]"
    payload: bytes
    group: asyncio.TaskGroup

    @property
    def a_id(self) -> PeerId:
        return self.a.identity.peer_id

    @property
    def b_id(self) -> PeerId:
        return self.b.identity.peer_id

    @property
    def way(self) -> PeerId:
        return way_to_node(self.a_id, 0)

    @property
    def key(self) -> SegmentKey:
        return SegmentKey(KIND_CONTRIBUTION, RoundIndex(0), Attempt(0), 0, SEGMENT, PhaseId(0))

    def header(self, sha256: bytes = b"") -> SegmentHeader:
        order = SendSegment(
            self.a_id, self.key, Digest(sha256 or hashlib.sha256(self.payload).digest()), root=Digest(bytes(32))
        )
        return self.transfers._header(order, Place(OUTBOX, AT, LENGTH))

    def send(self, sha256: bytes = b"") -> None:
        header = self.header(sha256)
        order = SendSegment(self.a_id, self.key, Digest(header.segment_sha256), root=Digest(bytes(32)))
        self.transfers.start(order, self.group)

    async def outcome(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            return await self.told.get()

    async def reached(self) -> None:
        await until(lambda: self.others.way_to(self.a_id, self.header()) == self.way)

    def receiver_bytes(self) -> int:
        door = self.node.uplink.inlet._door
        return door.receiver.counts["bytes_received"] if door is not None else 0


@contextlib.asynccontextmanager
async def receiving(folder: Path, *, life_s: float = 3600.0) -> AsyncIterator[Receiving]:
    """`life_s`: of the node's certificate."""
    node: Any = ReceivingNode()
    async with two(folder) as (a, b), asyncio.TaskGroup() as group:
        book, me = PortBook(), a.identity.peer_id
        head = HeadOfNode(node, a, b.identity.peer_id)

        def tell(peer: PeerId, ports: DataPorts) -> None:
            book.take(me, PEER_MESSAGES.decode(PEER_MESSAGES.encode(ports)))

        site = SiteInlets(
            place=head.place,
            received=head.received,
            admit=head.admit,
            callers=lambda: head.callers,
            in_touch=lambda: {b.identity.peer_id},
            tell=tell,
            rejected=lambda peer, error: head.rejected.append((peer, error.code)),
            port=0,
        )
        inlets = NodeInlets([(node, range(SEGMENT, SEGMENT + 1))], site)
        bulk, told = BulkSender(b.gate), asyncio.Queue[Any]()
        own = SendingSite(Credentials(b.identity), RUN, Doorkeeper(), lambda: 0, b._key_of, lambda: {me}, 8, 4)
        others = OtherPorts(book, own, bulk)
        payload, outbox = os.urandom(LENGTH), Buffers()
        outbox.provide([Buffer(OUTBOX, AT + LENGTH)])
        outbox.write(OUTBOX, AT, payload)
        taker = Taker(a)
        maps = PayloadMaps({0: ((AT, LENGTH),)})
        transfers = Transfers(RUN, outbox, maps, (bulk, taker.bulk), told.put_nowait)
        transfers.ways = others
        certificate = certify(a.identity, node.uplink.public_key, life_s=life_s)
        node.uplink.take_pass(UploadPass(certificate, str(RUN), b"", 0, 8, 4))
        work = (node.uplink.inlet.run(), node.receipts.run(), inlets.run(), others.run())
        tasks = [group.create_task(each) for each in work]
        yield Receiving(a, b, node, head, taker, inlets, book, others, transfers, told, payload, group)
        for task in tasks:
            task.cancel()
