"""Has the nodes of a site send payloads of their outer parts themselves (`network.data = "nodes"`).

The head orders each payload as it would send it, and sends it in the node's place where the node cannot: it is not
there, does not reach the other site, failed, or has other bytes. Each such case is counted. Nobody else sees a
difference: header, hashes and receipts are those of the head. Source: docs/adr/0045-nodes-send-payloads.md.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.nodes import NodeSends, UnreachedSite
from dilocoxd.daemon.chain.payload_map import Place
from dilocoxd.daemon.round.transfers import ByNode
from dilocoxd.daemon.workers.errands import Errands
from dilocoxd.daemon.workers.outer_worker import OuterWorker
from dilocoxd.errors import WireError, WorkerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.nodes import NODE_LIFE_S, NODES_SINCE_MINOR
from dilocoxd.swarm.direct.plane import DataPlane
from dilocoxd.swarm.direct.routes import Route
from dilocoxd.swarm.streams.bulk import ANSWERS, FINAL_REFUSALS, BulkSender
from dilocoxd.swarm.streams.refusals import NOT_LET_IN, Refused
from dilocoxd.wire.local.uploads import (
    DONE,
    NOT_HERE,
    REFUSED,
    UNREACHED,
    AskUploadKey,
    PayloadSent,
    SendPayload,
    UploadKey,
    UploadPass,
    UploadPeer,
    UploadWay,
)
from dilocoxd.wire.messages import PEER_MESSAGES, SegmentHeader

LOOK_S: Final = 1.0
OF_PAYLOADS: Final = (ANSWERS | FINAL_REFUSALS) - NOT_LET_IN
"""Refusals of the payload. Others are of who asks, and the head hears them itself, with what proves them."""
CONNECTIONS_ALL: Final = 32
"""To one site, of all nodes together: it takes 64 streams of a peer (protocol S10), and the head has some too."""
TOLD_AT_ONCE: Final = 64
"""Sites that a node is told of at one look: what waits to be written to it ends its connection when it is too much."""
OLDER: Final = f"it speaks a protocol before 2.{NODES_SINCE_MINOR}, which knows no nodes"


@dataclass(frozen=True, slots=True)
class SiteUploads:
    """What nodes are given."""

    certify: Callable[[bytes], bytes]
    """DER of a certificate for this public key. Raises WireError(bad_key)."""
    run_id: str
    membership: Callable[[], bytes]
    connections: int
    """To one site; of one node."""
    lanes: int


class PartWays:
    """Of one part on a node: what its node was told, and says that it reaches."""

    def __init__(self, worker: OuterWorker) -> None:
        self.worker = worker
        self.errands: Errands | None = None
        """Of the life that the rest is about."""
        self.key = b""
        self.passed_at = float("-inf")
        self.told: dict[PeerId, UploadPeer] = {}
        self.ways: dict[PeerId, UploadWay] = {}
        self.older: set[PeerId] = set()
        self.counts: Counter[str] = Counter()
        """sent, bytes_sent; by_head, bytes_by_head."""

    def note(self, told: UploadKey | UploadWay) -> None:
        """What the node says."""
        if isinstance(told, UploadKey):
            self.key = told.public_key
        elif told.peer in self.told:
            self.ways[PeerId(told.peer)] = told

    def begin(self, errands: Errands | None) -> None:
        """Another life, which knows nothing; None: none runs."""
        self.errands, self.key, self.passed_at = errands, b"", float("-inf")
        self.told, self.ways = {}, {}
        if errands is not None:
            errands.on_told = self.note
            errands.send(AskUploadKey())

    def reach(self, peer: PeerId) -> Errands | None:
        """By whom payloads go to `peer`; None: the head sends them."""
        way = self.ways.get(peer)
        return self.errands if way is not None and way.is_reached and peer in self.told else None

    def shown(self) -> NodeSends:
        """For people."""
        ways = [self.ways[peer] for peer in sorted(self.ways) if peer in self.told]
        unreached = [UnreachedSite(peer_id=way.peer, reason=way.reason) for way in ways if not way.is_reached]
        unreached += [UnreachedSite(peer_id=peer, reason=OLDER) for peer in sorted(self.older)]
        return NodeSends(
            payloads=self.counts["sent"],
            bytes=self.counts["bytes_sent"],
            payloads_by_head=self.counts["by_head"],
            bytes_by_head=self.counts["bytes_by_head"],
            reached=tuple(way.peer for way in ways if way.is_reached),
            unreached=tuple(unreached),
        )


class NodeUploads:
    """`run` until cancelled. Implements Uploads (daemon/round/transfers.py)."""

    def __init__(
        self,
        parts: Sequence[OuterWorker],
        holder: Callable[[int], OuterWorker],
        plane: DataPlane,
        bulk: BulkSender,
        site: SiteUploads,
    ) -> None:
        """`parts`: those on nodes; `holder`: of a segment, here or there."""
        self.parts = [PartWays(worker) for worker in parts]
        self._of = {id(part.worker): part for part in self.parts}
        self._holder = holder
        self._plane = plane
        self._bulk = bulk
        self._site = site
        self.others: Callable[[], Mapping[PeerId, Route]] = dict
        """Further ways, to nodes of other sites."""

    async def run(self) -> None:
        """Keep nodes told: a new life of a part, a certificate that ends, sites that come, move and go."""
        while True:
            for part in self.parts:
                self._look(part)
            await asyncio.sleep(LOOK_S)

    def _look(self, part: PartWays) -> None:
        if part.worker.errands is not part.errands:
            part.begin(part.worker.errands)
        errands, now = part.errands, asyncio.get_running_loop().time()
        if errands is None or not part.key:
            return
        if now - part.passed_at > NODE_LIFE_S / 2:
            try:
                errands.send(self._pass(part.key))
            except WireError:
                return  # a key of another kind: such a node sends nothing
            part.passed_at = now
        self._tell_peers(part, errands)

    def _pass(self, key: bytes) -> UploadPass:
        site = self._site
        certificate, port = site.certify(key), self._plane.port
        connections = max(1, min(site.connections, CONNECTIONS_ALL // len(self.parts)))
        return UploadPass(certificate, site.run_id, site.membership(), port, connections, site.lanes)

    def _tell_peers(self, part: PartWays, errands: Errands) -> None:
        routes = {**self._plane.routes(), **self.others()}
        part.older = {peer for peer, route in routes.items() if route.is_open and route.minor < NODES_SINCE_MINOR}
        over = [peer for peer in part.told if peer not in routes or peer in part.older]
        for peer in over[:TOLD_AT_ONCE]:
            errands.send(UploadPeer(peer, b"", "", 0))
            del part.told[peer]
            part.ways.pop(peer, None)
        reached = [route for peer, route in routes.items() if route.is_open and peer not in part.older]
        places = [UploadPeer(route.peer, route.public_key, route.host, route.port) for route in reached]
        news = [place for place in places if part.told.get(PeerId(place.peer)) != place]
        for place in news[:TOLD_AT_ONCE]:
            errands.send(place)
            part.told[PeerId(place.peer)] = place

    async def send(self, peer: PeerId, header: SegmentHeader, place: Place, *, is_new: bool) -> ByNode:
        """See Uploads."""
        part = self._of.get(id(self._holder(header.segment)))
        if part is None:
            return ByNode.NOT_BEGUN
        errands, outcome = part.reach(peer), ByNode.NOT_BEGUN
        if errands is not None:
            order = SendPayload(0, peer, place.buffer, place.offset, PEER_MESSAGES.encode(header), is_new)
            outcome = self._judged(peer, await self._paid(peer, errands, order, place.length))
        done, num_bytes = ("sent", "bytes_sent") if outcome is ByNode.DONE else ("by_head", "bytes_by_head")
        part.counts[done] += 1
        part.counts[num_bytes] += place.length
        return outcome

    async def _paid(self, peer: PeerId, errands: Errands, order: SendPayload, num_bytes: int) -> PayloadSent | None:
        """See _ordered, within the limit of what the site uploads. What a node did not send is the next one's: most
        often of the head, which sends the same payload in its place. One that is gone may have sent all of it."""
        if self._bulk.throttle is not None:
            await self._bulk.throttle(peer, num_bytes)
        answer = await self._ordered(peer, errands, order)
        if answer is not None:
            self._bulk.give_back(num_bytes - min(answer.num_bytes, num_bytes))
        return answer

    async def _ordered(self, peer: PeerId, errands: Errands, order: SendPayload) -> PayloadSent | None:
        """What the node answers; None: it is gone, or hangs."""
        speeds, num_bytes = self._bulk.speeds, None
        speeds.begin(peer)
        try:
            answer = await errands.send_payload(order)
            num_bytes = answer.num_bytes if answer.outcome == DONE else None
            return answer
        except WorkerError:
            return None
        finally:
            speeds.end(peer, num_bytes)

    @staticmethod
    def _judged(peer: PeerId, answer: PayloadSent | None) -> ByNode:
        """Raises Refused, of the payload."""
        if answer is None:
            return ByNode.BROKEN
        if answer.outcome == REFUSED and answer.code in OF_PAYLOADS:
            raise Refused(peer, answer.code, answer.detail)
        if answer.outcome == DONE:
            return ByNode.DONE
        return ByNode.NOT_BEGUN if answer.outcome in (UNREACHED, NOT_HERE) else ByNode.BROKEN

    def reaching(self, peer: PeerId) -> tuple[int, ...]:
        """Which of the parts on nodes send to `peer` themselves."""
        return tuple(index for index, part in enumerate(self.parts) if part.reach(peer) is not None)
