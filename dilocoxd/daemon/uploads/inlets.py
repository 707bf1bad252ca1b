"""Has other sites bring contributions straight to the nodes of this one (`network.data = "nodes"`).

The head decides about each offer as if it came to itself, tells peers of the ports, and hears of each payload that is
whole. One place of INBOX has one writer: what comes to the head goes to no node, and is moved there as ever. Source:
docs/adr/0046-nodes-receive-contributions.md, protocol S12.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dilocoxd.answers.nodes import NodeReceives
from dilocoxd.config.addresses import host_and_port
from dilocoxd.daemon.chain.payload_map import Place
from dilocoxd.daemon.workers.errands import Errands
from dilocoxd.daemon.workers.outer_worker import OuterWorker
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION
from dilocoxd.swarm.streams.bulk import EARLY_OFFER_S, NOT_YET, AlreadyHeld
from dilocoxd.wire.local.buffers import INBOX
from dilocoxd.wire.local.inlets import (
    HELD,
    THERE_MAX,
    AskPlace,
    Caller,
    CallerRejected,
    InletState,
    PayloadArrived,
    PayloadHeard,
    PayloadHere,
    PayloadPlace,
    PayloadRefused,
    PayloadsOver,
    PayloadsThere,
    ReceiveSegments,
)
from dilocoxd.wire.messages import PEER_MESSAGES, DataPorts, NodePort, SegmentHeader

LOOK_S: Final = 1.0
TOLD_AT_ONCE: Final = 64
"""Sites that a node is told of at one look."""
EARLY_MAX: Final = 1024
"""Offers whose proposal is not there yet."""
NOT_STARTED: Final = InletState(0, (), "the node has not said so yet")


@dataclass(frozen=True, slots=True)
class SiteInlets:
    """What the head decides with."""

    place: Callable[[PeerId, SegmentHeader], Place]
    """Where an offer goes. Raises AlreadyHeld, WireError."""
    received: Callable[[PeerId, SegmentHeader], None]
    """It is there, and has the hash of its header."""
    admit: Callable[[PeerId], None]
    """Raises WireError: this site is let in no more."""
    callers: Callable[[], Mapping[PeerId, bytes]]
    """Sites that are let in, with their public keys."""
    in_touch: Callable[[], Set[PeerId]]
    tell: Callable[[PeerId, DataPorts], None]
    rejected: Callable[[PeerId, WireError], None]
    """Told of what a node refused as bad input."""
    port: int
    """That nodes are to take; 0: any."""


@dataclass(frozen=True, slots=True)
class _Grant:
    peer: PeerId
    header: SegmentHeader
    place: Place


class PartInlet:
    """Of one part on a node."""

    def __init__(self, worker: OuterWorker, segments: range) -> None:
        self.worker = worker
        self.segments = segments
        self.errands: Errands | None = None
        """Of the life that `state`, `callers` and `grants` are about."""
        self.state = NOT_STARTED
        self.callers: dict[PeerId, bytes] = {}
        """Whom it was told of."""
        self.grants: dict[int, _Grant] = {}
        self.there: set[Place] = set()
        """Came to the node: its memory has what ours lacks, whichever life the part is in."""
        self.counts: Counter[str] = Counter()
        """received, bytes_received; by_head, bytes_by_head; rejected."""

    @property
    def is_up(self) -> bool:
        """It runs, and this is about the life that runs."""
        return self.errands is not None and self.worker.errands is self.errands

    def say(self, message: Any) -> None:
        """To the node, or to who stands for it."""
        if self.errands is not None:
            self.errands.send(message)

    def port(self) -> NodePort | None:
        """Where others bring contributions to its segments."""
        if not (self.is_up and self.state.port and self.state.hosts and self.segments):
            return None
        return NodePort(self.segments.start, self.segments.stop, self.state.port, self.state.hosts)

    def holding(self, place: Place) -> int | None:
        """Who has leave to write there; None: nobody."""
        return next((number for number, grant in self.grants.items() if grant.place == place), None)

    def shown(self) -> NodeReceives:
        """For people."""
        port = self.port()
        return NodeReceives(
            payloads=self.counts["received"],
            bytes=self.counts["bytes_received"],
            payloads_by_head=self.counts["by_head"],
            bytes_by_head=self.counts["bytes_by_head"],
            rejected=self.counts["rejected"],
            addresses=tuple(host_and_port(host, port.port) for host in port.hosts) if port is not None else (),
            reason="" if port is not None else self.state.reason or "the part does not run",
        )


class NodeInlets:
    """`run` until cancelled. Implements Inlets (daemon/round/transfers.py)."""

    def __init__(self, parts: Sequence[tuple[OuterWorker, range]], site: SiteInlets) -> None:
        """`parts`: those on nodes, with their segments."""
        self.parts = [PartInlet(worker, segments) for worker, segments in parts]
        self._site = site
        self._here: set[Place] = set()
        """What comes to the head itself in this attempt."""
        self._early: list[tuple[PartInlet, AskPlace, float]] = []
        self._told: dict[PeerId, DataPorts] = {}
        self._met: set[PeerId] = set()
        """May have been started anew, and know nothing."""
        for part in self.parts:
            part.worker.on_attached = partial(self._begin, part)
            if part.worker.errands is not None:
                self._begin(part, part.worker.errands)

    # ---- of the nodes -----------------------------------------------------------------------------------------

    def _begin(self, part: PartInlet, errands: Errands) -> None:
        """A life of the part, which knows nothing; its node has in memory what it had."""
        part.errands, part.state, part.callers, part.grants = errands, NOT_STARTED, {}, {}
        self._early = [early for early in self._early if early[0] is not part]
        errands.on_inlet = partial(self._on_said, part, errands)
        places = tuple(number for place in part.there for number in (place.offset, place.length))
        errands.send(PayloadsThere(INBOX, places))
        errands.send(ReceiveSegments(part.segments.start, part.segments.stop, self._site.port))

    def _on_said(self, part: PartInlet, errands: Errands, message: Any) -> None:
        if part.errands is not errands:
            return
        match message:
            case InletState():
                part.state = message
            case CallerRejected(peer, code, count):
                part.counts["rejected"] += count
                self._site.rejected(PeerId(peer), WireError(code, f"{count} at a node of this site"))
            case AskPlace():
                self._decide(part, message, asyncio.get_running_loop().time() + EARLY_OFFER_S)
            case PayloadArrived(request):
                self._arrived(part, request)

    def _decide(self, part: PartInlet, ask: AskPlace, end: float) -> None:
        number, peer = ask.request, PeerId(ask.peer)
        try:
            header = PEER_MESSAGES.decode(ask.header)
            if not isinstance(header, SegmentHeader) or header.kind != KIND_CONTRIBUTION:
                raise WireError("not_wanted", "nodes take contributions alone")
            if header.segment not in part.segments:
                raise WireError("not_wanted", "another part has this segment")
            self._site.admit(peer)
            place = self._site.place(peer, header)
            if place.length != header.segment_bytes:
                raise WireError("not_wanted", f"{header.segment_bytes} bytes offered, {place.length} expected")
            if place in self._here or part.holding(place) is not None:
                raise WireError("busy", "it comes another way")
            if place.buffer != INBOX or (len(part.there) >= THERE_MAX and place not in part.there):
                raise WireError("busy", "the head takes it")
        except AlreadyHeld:
            part.say(PayloadRefused(number, HELD))
        except WireError as error:
            may_wait = error.code == NOT_YET and len(self._early) < EARLY_MAX
            if may_wait and asyncio.get_running_loop().time() < end:
                self._early.append((part, ask, end))
            else:
                part.say(PayloadRefused(number, error.code, error.detail[:1000]))
        else:
            part.grants[number] = _Grant(peer, header, place)
            part.say(PayloadPlace(number, place.buffer, place.offset, place.length))

    def _arrived(self, part: PartInlet, request: int) -> None:
        grant = part.grants.pop(request, None)
        if grant is None:
            part.say(PayloadRefused(request, "stale", "it was called off"))
            return
        part.there.add(grant.place)
        part.counts["received"] += 1
        part.counts["bytes_received"] += grant.place.length
        place = grant.place
        part.say(PayloadHeard(request, place.buffer, place.offset, place.length))  # before anything is ordered of it
        self._site.received(grant.peer, grant.header)

    # ---- of the exchange --------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """See Inlets."""
        early, self._early = self._early, []
        for part, ask, end in early:
            self._decide(part, ask, end)

    def over(self, round_index: int, attempt: int) -> None:
        """See Inlets."""
        self._here.clear()
        for part in self.parts:
            kept = part.grants.items()
            part.grants = {n: g for n, g in kept if (g.header.round, g.header.attempt) >= (round_index, attempt)}
            part.say(PayloadsOver(round_index, attempt))

    def take_here(self, place: Place) -> None:
        """See Inlets."""
        if place in self._here:
            return
        self._here.add(place)
        for part in self.parts:
            if place in part.there:
                part.there.discard(place)
                part.say(PayloadHere(place.buffer, place.offset, place.length))
            number = part.holding(place)
            if number is not None:
                del part.grants[number]
                part.say(PayloadRefused(number, "busy", "the head takes it"))

    def came_here(self, header: SegmentHeader) -> None:
        """See Inlets."""
        part = next((part for part in self.parts if header.segment in part.segments), None)
        if part is not None and header.kind == KIND_CONTRIBUTION:
            part.counts["by_head"] += 1
            part.counts["bytes_by_head"] += header.segment_bytes

    # ---- of other sites ---------------------------------------------------------------------------------------

    def met(self, peer: PeerId) -> None:
        """A hello was exchanged with it."""
        self._met.add(peer)

    async def run(self) -> None:
        """Keep nodes told whom they let in, and other sites where nodes are."""
        while True:
            self.look_again()
            for part in self.parts:
                if part.is_up:
                    self._tell_callers(part)
            self._tell_sites()
            await asyncio.sleep(LOOK_S)

    def _tell_callers(self, part: PartInlet) -> None:
        callers = self._site.callers()
        for peer in [peer for peer in part.callers if peer not in callers]:
            part.say(Caller(peer, b""))
            del part.callers[peer]
        news = [(peer, key) for peer, key in callers.items() if part.callers.get(peer) != key]
        for peer, key in news[:TOLD_AT_ONCE]:
            part.say(Caller(peer, key))
            part.callers[peer] = key

    def _tell_sites(self) -> None:
        in_touch = self._site.in_touch()
        ports = DataPorts(tuple(port for port in (part.port() for part in self.parts) if port is not None))
        self._told = {peer: told for peer, told in self._told.items() if peer in in_touch}
        for peer in in_touch:
            is_unsure = peer in self._met and bool(ports.ports)
            if is_unsure or self._told.get(peer, DataPorts(())) != ports:
                self._site.tell(peer, ports)
                self._told[peer] = ports
        self._met.clear()
