"""Contributions of other sites to the segments of one outer part that come straight to its node: one life of the part.

The head decides about each offer, and hears of each payload that is whole before its sender gets a receipt. What it
calls off is written no more from that moment on (wire/local/inlets.py).
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.daemon.node.inlet import Inlet
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import AlreadyHeld
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.local.inlets import (
    HELD,
    AskPlace,
    Caller,
    InletState,
    PayloadArrived,
    PayloadHeard,
    PayloadPlace,
    PayloadRefused,
    PayloadsOver,
    ReceiveSegments,
)
from dilocoxd.wire.messages import PEER_MESSAGES, SegmentHeader

LOOK_S: Final = 1.0
ANSWER_S: Final = 5.0
"""So long the head has for an offer; an early one it may keep for 2 s (S8.7)."""
HEARD_S: Final = 10.0
"""So long it has to hear that a payload is whole: its sender waits for the receipt, and else goes to the head."""
ASKED_MAX: Final = 256
ASKED_OF_ONE_MAX: Final = 64
"""Payloads that the head was asked about and that are not through, of all sites and of one: what is said of them waits
in queues that end the life when they are full."""
_Offer = tuple[PeerId, SegmentHeader]


@dataclasses.dataclass(slots=True)
class _Asked:
    """One offer, for all lanes that bring it."""

    offer: _Offer
    answer: "asyncio.Future[None]"
    """The head gave it a place, or refused it."""
    region: Region | None = None
    heard: "asyncio.Future[None] | None" = None
    """It is whole; the head has heard so."""


class PartReceipts:
    """`run` beside the part; `take` what the head says; `leave` when the life is over. Implements Receiver."""

    def __init__(self, inlet: Inlet, buffers: Buffers, say: Callable[[Any], None]) -> None:
        """`say` is told what the head is to hear."""
        self.segments = range(0)
        self._inlet = inlet
        self._buffers = buffers
        self._say = say
        self._asked: dict[int, _Asked] = {}
        self._of: dict[_Offer, int] = {}
        self._of_one: Counter[PeerId] = Counter()
        self._number = 0
        self._told: InletState | None = None

    # ---- what the head says -----------------------------------------------------------------------------------

    def take(self, message: Any) -> bool:
        """Whether it was for us and not for the part. Raises WireError, ValueError, KeyError if it makes no sense."""
        match message:
            case ReceiveSegments(first, stop, port):
                self.segments, self._told = range(first, stop), None
                self._inlet.receive(self, port)
            case Caller(peer, b""):
                self._inlet.keep_out(PeerId(peer))
            case Caller(peer, public_key):
                self._inlet.let_in(PeerId(peer), public_key, self)
            case PayloadPlace():
                self._give(message)
            case PayloadRefused(request, code, detail):
                self._end(request, AlreadyHeld() if code == HELD else WireError(code, detail))
            case PayloadHeard(request):
                if (asked := self._pop(request)) is not None:
                    _settle(asked.heard, None)
            case PayloadsOver(round_index, attempt):
                self._over(lambda header: (header.round, header.attempt) < (round_index, attempt))
            case _:
                return False
        return True

    def _give(self, place: PayloadPlace) -> None:
        asked = self._asked.get(place.request)
        if asked is None:
            return
        if place.offset + place.length > self._buffers.size(place.buffer):
            raise WireError("malformed", f"{place.buffer} has no such place here")
        asked.region = Region(self._buffers.fd(place.buffer), place.offset, place.length)
        _settle(asked.answer, None)

    def _end(self, request: int, error: Exception) -> None:
        """Not there, or there no more: what runs of it must not write again, for the head may write there next."""
        if (asked := self._pop(request)) is None:
            return
        if asked.region is not None:
            self._inlet.call_off(*asked.offer)  # and not what another site brings, which may have copied the header
        _settle(asked.answer, error)
        _settle(asked.heard, PeerError(f"called off by the head: {error}"))

    def _pop(self, request: int) -> _Asked | None:
        """It is through, or over; None: it was before."""
        if (asked := self._asked.pop(request, None)) is None:
            return None
        if self._of.get(asked.offer) == request:
            del self._of[asked.offer]
        self._of_one[asked.offer[0]] -= 1
        self._of_one += Counter()  # without those that are 0
        return asked

    def _over(self, is_over: Callable[[SegmentHeader], bool]) -> None:
        for request, asked in list(self._asked.items()):
            if is_over(asked.offer[1]):
                self._end(request, WireError("stale", "its attempt is over"))
        self._inlet.forget(is_over)

    def leave(self) -> None:
        """Nothing is written for this life any more."""
        self._inlet.leave(self)
        for request in list(self._asked):
            self._end(request, WireError("busy", "the outer part has ended"))

    # ---- what other sites bring -------------------------------------------------------------------------------

    async def decide(self, peer: PeerId, header: SegmentHeader) -> None:
        """See Receiver."""
        number = self._of.get((peer, header))
        asked = self._asked[number] if number is not None else self._ask(peer, header)
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.shield(asked.answer)
        except TimeoutError:
            raise WireError("busy", "the head did not answer") from None

    def _ask(self, peer: PeerId, header: SegmentHeader) -> _Asked:
        if len(self._asked) >= ASKED_MAX or self._of_one[peer] >= ASKED_OF_ONE_MAX:
            raise WireError("busy", "more offers than the head has answered")
        self._number += 1
        offer = (peer, header)
        asked = self._asked[self._number] = _Asked(offer, asyncio.get_running_loop().create_future())
        self._of[offer] = self._number
        self._of_one[peer] += 1
        self._say(AskPlace(self._number, peer, PEER_MESSAGES.encode(header)))
        return asked

    def place(self, peer: PeerId, header: SegmentHeader) -> Region:
        """See Receiver."""
        number = self._of.get((peer, header))
        region = self._asked[number].region if number is not None else None
        if region is None:
            raise WireError("stale", "it was called off")
        return region

    async def arrived(self, peer: PeerId, header: SegmentHeader) -> None:
        """See Receiver."""
        number = self._of.get((peer, header))
        asked = self._asked[number] if number is not None else None
        if number is None or asked is None or asked.region is None:
            raise PeerError(f"a payload of {peer} was called off when it was whole")
        if asked.heard is None:
            asked.heard = asyncio.get_running_loop().create_future()
            self._say(PayloadArrived(number))
        try:
            async with asyncio.timeout(HEARD_S):
                await asyncio.shield(asked.heard)
        except TimeoutError:
            raise PeerError("the head did not hear of a payload") from None

    # ---- life -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tell the head where others reach this node, and whom it refused, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.segments:
                continue
            state = self._inlet.state()
            if state != self._told:
                self._told = state
                self._say(state)
            for rejected in self._inlet.take_rejected():
                self._say(rejected)


def _settle(future: "asyncio.Future[None] | None", error: Exception | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
        return
    future.set_exception(error)
    future.exception()  # nobody need be waiting any more
