"""Moves segment payloads between the shared buffers and peers, at the round machine's orders (protocol/07-exchange.md).

Outgoing: one task per ordered segment, a few at a time per peer. Incoming: the machine names the destination of each
offer. Bytes go from descriptor to descriptor; nothing is ever whole in the daemon.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from enum import Enum, auto
from typing import Final, Protocol

from dilocoxd.daemon.chain.payload_map import PayloadMaps, Place
from dilocoxd.daemon.observe.rounds import RoundBytes
from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.exchange.facts import SegmentReceived, SegmentSent, TransferFailed
from dilocoxd.machines.exchange.orders import CancelTransfers, SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, Destination, Refusal, SegmentKey
from dilocoxd.machines.round.inputs import Event
from dilocoxd.swarm.streams.bulk import NOT_YET, AlreadyHeld, BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.throttle import PeerGates
from dilocoxd.wire.local.buffers import OUTBOX, RESULT
from dilocoxd.wire.messages import SegmentHeader

SENDS_PER_PEER: Final = 64
"""Under way at a time; the sender writes a few of them, the others wait for their receipts: a long link holds many."""
NOT_WANTED: Final = "not_wanted"
BAD_ROOT: Final = "bad_root"


class ByNode(Enum):
    """What became of a payload that a node was to send itself."""

    DONE = auto()
    """The peer has confirmed it."""
    NOT_BEGUN = auto()
    """It is to be sent from here."""
    BROKEN = auto()
    """Likewise, and the peer may have some of it."""


class Uploads(Protocol):
    """Nodes of this site that send payloads of their outer parts themselves (daemon/uploads/orders.py)."""

    async def send(self, peer: PeerId, header: SegmentHeader, place: Place, *, is_new: bool) -> ByNode:
        """What became of it. Raises Refused when the peer does not want it."""
        ...


class NodeWays(Protocol):
    """Ways to nodes of other sites (daemon/uploads/other_ports.py)."""

    sender: BulkSender
    """Goes there. Raises NotReached at once where it does not."""

    def way_to(self, peer: PeerId, header: SegmentHeader) -> PeerId | None:
        """What `sender`, and nodes of ours, call the way to the node of `peer` that takes this payload; None: `peer`
        takes it itself."""
        ...


class Inlets(Protocol):
    """Nodes of this site to which others bring contributions (daemon/uploads/inlets.py)."""

    def look_again(self) -> None:
        """What was not to be taken yet may be now."""
        ...

    def over(self, round_index: int, attempt: int) -> None:
        """Nothing of attempts before this one is written any more."""
        ...

    def take_here(self, place: Place) -> None:
        """What goes there comes to the head, and to no node."""
        ...

    def came_here(self, header: SegmentHeader) -> None:
        """So it has."""
        ...


class Descriptors(Protocol):
    """Shared buffers by name."""

    def fd(self, name: str) -> int:
        """Descriptor of the memfd; its owner keeps it open."""


def key_of(header: SegmentHeader) -> SegmentKey:
    """The machine's name of an offered segment."""
    is_contribution = header.kind == KIND_CONTRIBUTION
    return SegmentKey(
        kind=header.kind,
        round=RoundIndex(header.round),
        attempt=Attempt(header.attempt),
        pass_index=header.pass_index,
        segment=header.segment,
        phase=PhaseId(header.phase) if is_contribution else None,
    )


class Transfers:
    """Segments on their way, out and in."""

    def __init__(
        self,
        run_id: RunId,
        buffers: Descriptors,
        payloads: PayloadMaps,
        bulk: tuple[BulkSender, BulkReceiver],
        tell: Callable[[Event], None],
    ) -> None:
        self._run_id = run_id
        self._buffers = buffers
        self._payloads = payloads
        self._sender, self._receiver = bulk
        self.uploads: Uploads | None = None
        """None: everything leaves from here."""
        self.ways: NodeWays | None = None
        """None: everything goes to the other sites themselves."""
        self.inlets: Inlets | None = None
        """None: everything comes here."""
        self._tell = tell
        self._sends = PeerGates(SENDS_PER_PEER)
        self._running: dict[asyncio.Task[None], SegmentKey] = {}
        self._broken: set[tuple[PeerId, SegmentKey]] = set()
        """Sent in part, of attempts that are not given up: the receiver holds some of it."""
        self._moved_to: Hashable = None
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._num_under_way = 0
        self._began_at = 0.0
        self._sending_s = 0.0

    def region(self, place: Place) -> Region:
        """The transport's name of a place in a shared buffer."""
        return Region(self._buffers.fd(place.buffer), place.offset, place.length)

    def start(self, order: SendSegment, group: asyncio.TaskGroup) -> None:
        """Send in the background; SegmentSent or TransferFailed follows."""
        task = group.create_task(self._send(order), name=f"segment {order.key.segment} to {order.peer}")
        self._running[task] = order.key
        task.add_done_callback(lambda done: self._running.pop(done, None))

    def cancel(self, order: CancelTransfers) -> None:
        """Stop transfers of attempts below the order's: what they read or write may be used for something else now."""
        for task, key in list(self._running.items()):
            if (key.round, key.attempt) < (order.round, order.attempt):
                task.cancel()
        self._broken = {(p, key) for p, key in self._broken if (key.round, key.attempt) >= (order.round, order.attempt)}
        self._receiver.forget(lambda header: (header.round, header.attempt) < (order.round, order.attempt))
        if self.inlets is not None:
            self.inlets.over(order.round, order.attempt)

    def look_again(self, moved_to: Hashable) -> None:
        """An offer that came before its proposal may be wanted now, if the machine is not where it was before.

        Most events move nothing, and any member can cause thousands a second, and have dozens of offers wait.
        """
        if moved_to != self._moved_to:
            self._moved_to = moved_to
            self._receiver.look_again()
            if self.inlets is not None:
                self.inlets.look_again()

    @property
    def is_sending(self) -> bool:
        """Something is read from OUTBOX or RESULT now, or will be."""
        return bool(self._running)

    def _header(self, order: SendSegment, place: Place) -> SegmentHeader:
        key = order.key
        return SegmentHeader(
            run_id=self._run_id,
            round=key.round,
            attempt=key.attempt,
            kind=key.kind,
            pass_index=key.pass_index,
            segment=key.segment,
            phase=key.phase or 0,
            segment_bytes=place.length,
            offset=0,
            piece_bytes=place.length,
            segment_sha256=order.sha256,
            root=order.root,
            proof=order.proof,
        )

    async def _send(self, order: SendSegment) -> None:
        buffer = OUTBOX if order.key.kind == KIND_CONTRIBUTION else RESULT
        place = self._payloads.at(order.lowrank_r).own(buffer, order.key.pass_index, order.key.segment)
        try:
            async with self._sends.to(order.peer), self._counted():
                await self._bring(order.peer, self._header(order, place), place, is_new=self._is_new(order))
        except (PeerError, StoreError) as error:
            if not isinstance(error, Refused):
                self._broken.add((order.peer, order.key))
            self._tell(TransferFailed(order.peer, order.key, str(error)))
        else:
            self._sent[order.key.round] += place.length
            self._tell(SegmentSent(order.peer, order.key))

    async def _bring(self, peer: PeerId, header: SegmentHeader, place: Place, *, is_new: bool) -> None:
        """To the node that takes it; whatever that says or does not, `peer` has the last word (S12). Raises PeerError,
        StoreError."""
        way = self.ways.way_to(peer, header) if self.ways is not None else None
        if self.ways is not None and way is not None:
            with contextlib.suppress(PeerError):
                await self._bring_by(self.ways.sender, way, header, place, is_new=is_new)
                return
            is_new = False
        await self._bring_by(self._sender, peer, header, place, is_new=is_new)

    async def _bring_by(
        self, sender: BulkSender, way: PeerId, header: SegmentHeader, place: Place, *, is_new: bool
    ) -> None:
        done = ByNode.NOT_BEGUN
        if self.uploads is not None:
            done = await self.uploads.send(way, header, place, is_new=is_new)
        if done is not ByNode.DONE:
            source, is_new = self.region(place), is_new and done is ByNode.NOT_BEGUN
            await sender.send_segment(way, header, source, attempts=1, is_new=is_new)

    def _is_new(self, order: SendSegment) -> bool:
        """Whether the peer will hardly have any of it: nothing of it was sent in vain, and no earlier attempt did."""
        is_first = order.key.kind != KIND_CONTRIBUTION or not order.key.attempt
        return is_first and (order.peer, order.key) not in self._broken

    @contextlib.asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        """The time in which something is under way, however many payloads at once."""
        clock = asyncio.get_running_loop().time
        if not self._num_under_way:
            self._began_at = clock()
        self._num_under_way += 1
        try:
            yield
        finally:
            self._num_under_way -= 1
            if not self._num_under_way:
                self._sending_s += clock() - self._began_at

    def arrival(self, header: SegmentHeader, found: Destination | Refusal) -> Place:
        """Where an offered segment goes, given the machine's word. Raises AlreadyHeld, or WireError to refuse it."""
        if header.run_id != self._run_id:
            raise WireError("wrong_run", f"this peer is in run {self._run_id}")
        if isinstance(found, Refusal):
            if found.is_held:
                raise AlreadyHeld
            raise WireError(NOT_YET if found.is_transient else NOT_WANTED, found.reason)
        if not found.takes(header.segment_sha256, header.root, header.proof):
            raise WireError(BAD_ROOT, f"segment {header.segment} is not part of the payload that was offered")
        try:
            payloads = self._payloads.at(found.lowrank_r)
            return payloads.arrival(found.slot, found.pass_index, found.segment)
        except ValueError as error:
            raise WireError(NOT_WANTED, str(error)) from error

    def take_here(self, place: Place) -> Region:
        """It comes to us, and to no node of ours."""
        if self.inlets is not None:
            self.inlets.take_here(place)
        return self.region(place)

    def received(self, peer: PeerId, header: SegmentHeader) -> None:
        """A segment is complete, in our place for it, and has the hash of its header."""
        if self.inlets is not None:
            self.inlets.came_here(header)
        self.arrived(peer, header)

    def arrived(self, peer: PeerId, header: SegmentHeader) -> None:
        """The same of one that is here or at a node."""
        self._received[header.round] += header.segment_bytes
        root = Digest(header.root)
        self._tell(SegmentReceived(peer, key_of(header), Digest(header.segment_sha256), root))

    def take_counts(self, round_index: int) -> RoundBytes:
        """Payload bytes of a round that is over; older rounds are forgotten."""
        counts = RoundBytes(self._sent[round_index], self._received[round_index], self._sending_s)
        self._sending_s = 0.0
        for counter in (self._sent, self._received):
            for old in [r for r in counter if r <= round_index]:
                del counter[old]
        return counts
