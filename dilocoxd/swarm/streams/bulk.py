"""Bulk push: one payload from a file region here to a file region there, in verified pieces, resumable.

Opener: HELLO, OFFER(header) -> responder: HOLDING(bitmap of pieces it has) -> opener: the missing PIECEs, FINISHED ->
responder: RECEIPT(0 payload complete and its sha256 right, 1 pieces taken but others are missing). Large payloads use
several streams (lanes) at once: each lane offers the same header and takes the next missing piece. The first pieces of
what is new go out with the offer, which saves a round trip; if it is refused they are thrown away. Where these are all
FINISHED follows at once, and on a data connection the next payload behind it. After a broken
stream the offer is repeated and only what the bitmap lacks is sent. Only RECEIPT 0 is success.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.assemblies import EARLY_PIECES_MAX, Assemblies, Assembly, Sending
from dilocoxd.swarm.streams.budget import EmptyExchanges, ExchangeYield
from dilocoxd.swarm.streams.pieces import PAYLOAD_BYTES_MAX, PieceSet, Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, REFUSAL_BYTES_MAX, REFUSAL_TIMEOUT_S, FrameStream, StreamGate
from dilocoxd.swarm.streams.throttle import PeerGates, SendingPlace, SendingSpeeds
from dilocoxd.wire.frames import PIECE_BYTES, Frame, FrameKind, encode_piece_header, split_piece
from dilocoxd.wire.messages import PEER_MESSAGES, Hello, SegmentHeader

LANES_MAX: Final = 4
VERIFY_BYTES_PER_S: Final = 50e6
"""Slowest hashing that a sender must put up with before it calls the receiver silent."""
LANE_BYTES: Final = EARLY_PIECES_MAX * PIECE_BYTES
"""A payload gets one lane for this many bytes, so that one of usual size is sent without waiting for an answer."""
LANES_PER_PEER: Final = 12
"""Lanes that are written to one peer at a time: each holds a piece in memory. Over p2pd until their receipts come."""
EARLY_OFFER_S: Final = 2.0
"""So long an offer waits for what would let it in (S8): a proposal may come later than the bytes that follow from it,
which take a shorter way."""
NOT_YET: Final = "not_yet"
"""Refusal code: what would let the offer in may still be on its way; offer it again a little later."""
RECEIPT_COMPLETE: Final = b"\0"
RECEIPT_PARTIAL: Final = b"\1"
FINAL_REFUSALS: Final = frozenset(
    {"wrong_run", "wrong_protocol", "not_allowed", "stale", "not_wanted", "too_large", "malformed", "bad_root"}
)
"""Refusals after which offering the same payload again is useless."""

ANSWERS: Final = frozenset({NOT_YET, "busy", "stale", "not_wanted", "bad_root"})
"""Refusals of an offer by a receiver that goes on listening: a data connection can carry the next one."""

Throttle = Callable[[PeerId, int], Awaitable[None]]
"""Awaited with a number of bytes before they are sent; the place for a rate limit."""


class AlreadyHeld(Exception):
    """Raised by Accept: these bytes are here already, from an earlier attempt; the sender gets its receipt at once."""


Accept = Callable[[PeerId, SegmentHeader], Region]
"""Where a payload shall go; asked again at every offer. Raises AlreadyHeld, or WireError(code, reason) to refuse it:
a code of FINAL_REFUSALS tells the sender to give up, any other (`busy`) to offer again a little later. After NOT_YET
it is asked again at each `look_again`, for EARLY_OFFER_S."""
OnReceived = Callable[[PeerId, SegmentHeader], Awaitable[None]]
"""Told once when a payload is complete and verified, before the sender gets its receipt."""


class BulkReceiver:
    """Responder of PROTOCOL_BULK."""

    def __init__(self, accept: Accept, on_received: OnReceived) -> None:
        self._accept = accept
        self._on_received = on_received
        self._assemblies = Assemblies()
        self._news = asyncio.Event()
        self._empty = EmptyExchanges(lambda: asyncio.get_running_loop().time())
        self.on_delayed: Callable[[PeerId], None] = lambda peer: None
        """Told of each exchange that waits because too many before it brought nothing (S10)."""
        self.counts: Counter[str] = Counter()
        """payloads_received, bytes_received, pieces_duplicate, payloads_bad_hash."""

    def forget(self, is_over: Callable[[SegmentHeader], bool]) -> None:
        """Forget payloads of rounds that are over (their regions may be used again)."""
        self._assemblies.forget(is_over)

    def drop(self, peer: PeerId, header: SegmentHeader) -> None:
        """Forget this payload of this peer."""
        self._assemblies.drop(peer, header)

    def look_again(self) -> None:
        """What was not to be taken yet may be now."""
        self._news.set()
        self._news = asyncio.Event()

    async def _assembly_soon(self, peer: PeerId, header: SegmentHeader) -> Assembly:
        end = asyncio.get_running_loop().time() + EARLY_OFFER_S
        while True:
            news = self._news
            try:
                return self._assembly(peer, header)
            except WireError as error:
                if error.code != NOT_YET:
                    raise
                try:
                    async with asyncio.timeout_at(end):
                        await news.wait()
                except TimeoutError:
                    raise error from None

    def _assembly(self, peer: PeerId, header: SegmentHeader) -> Assembly:
        if header.offset or header.piece_bytes != header.segment_bytes or header.segment_bytes > PAYLOAD_BYTES_MAX:
            raise WireError("malformed", "an offer names a whole segment")
        region = self._accept(peer, header)
        if region.length != header.segment_bytes:
            raise WireError("not_wanted", f"{header.segment_bytes} bytes offered, {region.length} expected")
        return self._assemblies.of(peer, header, region)

    async def serve(self, stream: FrameStream, hello: Hello) -> None:
        """One incoming lane."""
        await self._wait(stream.peer)
        brought = ExchangeYield()
        try:
            await self._serve(stream, brought)
        finally:
            self._empty.pay(stream.peer, stream.network, brought)

    async def _wait(self, peer: PeerId) -> None:
        if wait_s := self._empty.wait_s(peer):
            self.on_delayed(peer)
            await asyncio.sleep(wait_s)

    async def _serve(self, stream: FrameStream, brought: ExchangeYield) -> None:
        frame = await stream.read(FrameKind.OFFER)
        header = PEER_MESSAGES.decode(frame.message)
        if not isinstance(header, SegmentHeader):
            raise WireError("malformed", "OFFER frame without a SegmentHeader")
        try:
            assembly = await self._assembly_soon(stream.peer, header)
        except AlreadyHeld:
            await self._confirm_at_once(stream, header, brought)
            return
        except WireError as error:
            if error.code not in ANSWERS:
                raise  # bad input: counted, and the end of its connection (S5.2, S11.5)
            await stream.refuse(error.code, error.detail)
            await self._until_finished(stream, brought)
            return
        await stream.write(FrameKind.HOLDING, assembly.pieces.to_bytes())
        try:
            while await self._take_next(stream, assembly, brought):
                if assembly.pieces.is_complete:  # the opener's FINISHED may be a round trip away
                    await self._settle(stream.peer, header, assembly)
            is_complete = await self._settle(stream.peer, header, assembly)
        except StoreError as error:
            # Pieces that are on their way are no bad input, nor a next exchange: the failure is ours.
            await stream.refuse("store", str(error))
            await stream.throw_away(REFUSAL_BYTES_MAX, timeout_s=REFUSAL_TIMEOUT_S)
            raise PeerError(f"a segment of {stream.peer} could not be stored here: {error}") from error
        await stream.write(FrameKind.RECEIPT, RECEIPT_COMPLETE if is_complete else RECEIPT_PARTIAL)

    async def _confirm_at_once(self, stream: FrameStream, header: SegmentHeader, brought: ExchangeYield) -> None:
        pieces = PieceSet(Region(-1, 0, header.segment_bytes).num_pieces)
        await stream.write(FrameKind.HOLDING, pieces.filled().to_bytes())
        await self._until_finished(stream, brought)
        await stream.write(FrameKind.RECEIPT, RECEIPT_COMPLETE)

    @staticmethod
    async def _until_finished(stream: FrameStream, brought: ExchangeYield) -> None:
        """Throw away what was sent before our answer was known."""
        for _ in range(EARLY_PIECES_MAX):
            if (await stream.read(FrameKind.PIECE, FrameKind.FINISHED)).kind is FrameKind.FINISHED:
                return
            brought.num_unwanted += 1
        await stream.read(FrameKind.FINISHED)

    async def _take_next(self, stream: FrameStream, assembly: Assembly, brought: ExchangeYield) -> bool:
        """False when there is none. Nothing looks at the piece any more then: its memory is for the one behind it."""
        frame = await stream.read(FrameKind.PIECE, FrameKind.FINISHED)
        if frame.kind is FrameKind.PIECE and await self._take(assembly, frame.payload):
            brought.is_wanted = True
        elif frame.kind is FrameKind.PIECE:  # it could come for ever, in one exchange
            brought.num_unwanted += 1
            self._empty.pay(stream.peer, stream.network, brought, is_over=False)
            await self._wait(stream.peer)
        return frame.kind is FrameKind.PIECE

    async def _take(self, assembly: Assembly, payload: bytes | bytearray | memoryview) -> bool:
        """Whether it was needed."""
        if assembly.is_forgotten:
            raise WireError("stale", "the round of this payload is over")
        index, data = split_piece(payload)
        assembly.region.piece_bytes(index)
        if index in assembly.pieces:
            self.counts["pieces_duplicate"] += 1
            return False
        await assembly.region.write_piece(index, data)
        assembly.pieces.add(index)
        if not assembly.region.is_on_disk:  # there another lane may be writing the same piece
            assembly.hashed.add(index, data)
        self.counts["bytes_received"] += len(data)
        return True

    async def _settle(self, peer: PeerId, header: SegmentHeader, assembly: Assembly) -> bool:
        async with assembly.lock:
            if not assembly.pieces.is_complete:
                return False
            if assembly.is_forgotten:
                raise WireError("stale", "the round of this payload is over")
            if not assembly.is_verified:
                self._assemblies.is_whole(assembly)
                if await assembly.region.sha256(assembly.hashed) != header.segment_sha256:
                    self._assemblies.begin_anew(assembly)
                    self.counts["payloads_bad_hash"] += 1
                    raise WireError("bad_hash", f"segment {header.segment} is not what its header says")
                await self._on_received(peer, header)
                assembly.is_verified = True
                self.counts["payloads_received"] += 1
            return True


class BulkSender:
    """Opener of PROTOCOL_BULK."""

    def __init__(self, gate: StreamGate, throttle: Throttle | None = None, *, lanes_max: int = LANES_MAX) -> None:
        self._gate = gate
        self._lanes_max = lanes_max
        self.throttle = throttle
        self.give_back: Callable[[int], None] = lambda num_bytes: None
        """Called with bytes that `throttle` let through and that are not sent."""
        self.counts: Counter[str] = Counter()
        """payloads_sent, bytes_sent (pieces, repeated ones too), offers_repeated."""
        self.speeds = SendingSpeeds()
        """Of all that is sent from this site, by whatever machine."""
        self.bytes_per_s = self.speeds.bytes_per_s
        """Smoothed speed of recent payloads together, per receiver."""
        self.sending_speed = self.speeds.fastest
        """Measured bytes per second (0 = not known yet) while a payload is being sent; None while none is."""
        self._lanes = PeerGates(LANES_PER_PEER)

    async def send_segment(
        self,
        peer: PeerId,
        header: SegmentHeader,
        source: Region,
        *,
        attempts: int = 3,
        is_new: bool = True,
        note_sent: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        """Return when `peer` has confirmed the whole payload. `is_new`: it will hardly have any of it yet. `note_sent`:
        told what left of it, after each try.
        Raises Refused (it does not want it), another PeerError (lost, silent), StoreError (our region is unreadable).
        """
        if source.length != header.segment_bytes:
            raise ValueError(f"region of {source.length} bytes for a segment of {header.segment_bytes}")
        failures, num_bytes, is_there = 0, 0, False
        self.speeds.begin(peer)
        try:
            while not is_there:
                num_lanes = max(1, min(self._lanes_max, -(-source.length // LANE_BYTES)))
                sending = Sending(peer, header, source, is_new and not failures, num_lanes)
                try:
                    is_there = await self._try_once(sending, is_last=failures + 1 >= attempts)
                finally:
                    note_sent(sending.num_bytes)
                num_bytes += sending.num_bytes
                if not is_there:
                    failures += 1
                    self.counts["offers_repeated"] += 1
                    await asyncio.sleep(min(2.0, 0.1 * 2**failures))
        finally:
            self.speeds.end(peer, num_bytes if is_there else None)
        self.counts["payloads_sent"] += 1

    async def _try_once(self, sending: Sending, *, is_last: bool) -> bool:
        """One round of lanes; True if the payload is confirmed. Raises if it is not and `is_last`, or never will be."""
        peer = sending.peer
        results: list[bool | PeerError | WireError | StoreError] = []
        gate = self._lanes.to(peer)

        async def lane() -> None:
            place = SendingPlace(gate)
            try:
                results.append(await self._run_lane(sending, place))
            except (PeerError, WireError, StoreError) as error:
                results.append(error)
            finally:
                place.leave()

        async with asyncio.TaskGroup() as group:
            for number in range(sending.num_lanes):
                group.create_task(lane(), name=f"bulk lane {number} to {peer}")
        if True in results:
            return True
        errors = [result for result in results if not isinstance(result, bool)]
        final = [
            e for e in errors if isinstance(e, StoreError) or (isinstance(e, Refused) and e.code in FINAL_REFUSALS)
        ]
        if final:
            raise final[0]
        if is_last:
            reason = errors[0] if errors else PeerError(f"{peer} lacks pieces that were sent")
            raise reason if isinstance(reason, PeerError) else PeerError(f"{peer}: {reason}")
        return False

    async def _run_lane(self, sending: Sending, place: SendingPlace) -> bool:
        """In its place from when a stream is opened until all is written that others need not wait for."""
        source = sending.source

        async def written(stream: FrameStream) -> None:
            await stream.write(FrameKind.FINISHED)
            if stream.on_written is not None:
                stream.on_written()
                place.leave()

        stream, (holding, is_finished) = await self._gate.ask(
            sending.peer, PROTOCOL_BULK, lambda stream: self._offer(stream, sending, written), place.enter
        )
        try:
            missing = PieceSet.from_bytes(holding.message, source.num_pieces).missing()
            if not is_finished:
                for index in missing:
                    if sending.claim(index):
                        await self._send_piece(stream, sending, index)
                await written(stream)
            patience_s = self._gate.progress_timeout_s + source.length / VERIFY_BYTES_PER_S
            receipt = await stream.read(FrameKind.RECEIPT, timeout_s=patience_s)
            stream.done()
            return receipt.message == RECEIPT_COMPLETE
        finally:
            stream.close()

    async def _offer(
        self, stream: FrameStream, sending: Sending, written: Callable[[FrameStream], Awaitable[None]]
    ) -> tuple[Frame, bool]:
        """HOLDING, and whether all is written: the first pieces of what is new are sent meanwhile, with FINISHED if
        there are no others. Raises Refused, PeerError, WireError."""
        await stream.write(FrameKind.OFFER, PEER_MESSAGES.encode(sending.header))
        is_finished = False
        answers: list[Frame | PeerError | WireError | StoreError] = []
        early: list[int] = []

        async def hear() -> None:
            try:
                answers.append(await stream.read(FrameKind.HOLDING))
            except (PeerError, WireError) as error:
                answers.append(error)

        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(hear(), name=f"answer of {sending.peer}")
            try:
                while not answers and (index := sending.next_early(early)) is not None:
                    early.append(index)
                    await self._send_piece(stream, sending, index)
                if not answers and sending.is_shared_out:
                    is_finished = True
                    await written(stream)
            except (PeerError, StoreError) as error:
                hearing.cancel()
                if not answers:
                    answers.append(error)
        answer = answers[0]
        if isinstance(answer, Frame):
            return answer, is_finished
        sending.claimed.difference_update(early)
        if isinstance(answer, Refused) and answer.code in ANSWERS:
            with contextlib.suppress(PeerError):
                if not is_finished:
                    await stream.write(FrameKind.FINISHED)
                stream.done()
        raise answer

    async def _send_piece(self, stream: FrameStream, sending: Sending, index: int) -> None:
        data = await sending.source.read_piece(index)
        if self.throttle is not None:
            await self.throttle(sending.peer, len(data))
        await stream.write(FrameKind.PIECE, encode_piece_header(index), data)
        self.counts["bytes_sent"] += len(data)
        sending.num_bytes += len(data)
