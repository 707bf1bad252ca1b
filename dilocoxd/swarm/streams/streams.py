"""Frames on libp2p streams: who speaks (HELLO), progress time-outs on every read and write, and clean refusals.

Every stream starts with a HELLO of its opener, so each stream is authorised by itself and a restart on either side
needs no ceremony. The opener closes; the responder waits for the opener's end of stream. libp2p shows a crashed peer
as a clean end of stream, so an end where a frame was due is always a failure.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, Protocol, TypeVar

from dilocoxd.errors import PeerError, ProtocolViolation, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper, Standing
from dilocoxd.swarm.streams.ends import BothWays, ByteReader, ByteWriter, Patience, StreamOpener, in_blocks
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.refusals import NOT_LET_IN, Refused, other_protocols
from dilocoxd.swarm.streams.room import StreamPlace, StreamRoom
from dilocoxd.swarm.streams.throttle import REPEATS_MAX
from dilocoxd.wire.codec import one_line
from dilocoxd.wire.frames import (
    PRELUDE_BYTES,
    UNDIGESTED_SINCE_MINOR,
    Frame,
    FrameKind,
    Kinds,
    decode_prelude,
    encode_prelude,
    finish_frame,
)
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, PROTOCOL_MINOR, Hello, Refuse

T = TypeVar("T")

PROTOCOL_HELLO: Final = "/dilocoxd/hello"
PROTOCOL_MESSAGE: Final = "/dilocoxd/message"
PROTOCOL_CALL: Final = "/dilocoxd/call"
PROTOCOL_BULK: Final = "/dilocoxd/bulk"
PROTOCOL_FETCH: Final = "/dilocoxd/fetch"

PROGRESS_TIMEOUT_S: Final = 10.0
REFUSAL_TIMEOUT_S: Final = 5.0
"""So long a refused stream is read on, and what it brings thrown away, until its opener closes (S7)."""
REFUSAL_BYTES_MAX: Final = 1024 * 1024
DATA_IDLE_S: Final = 330.0
"""So long a data connection may carry nothing; its opener ends it a little earlier (S11)."""
REFUSALS_MAX: Final = 64
"""Refused streams that are read on at a time; those beyond are closed at once."""
WRITE_BYTES: Final = 64 * 1024
"""Largest write between two waits for the other side, so that a slow link still shows progress."""


class DataWays(Protocol):
    """The part of direct.plane.DataPlane that this floor uses."""

    async def take(self, peer: PeerId, protocol: str) -> "FrameStream | None":
        """A connection of its own for one exchange; None: use p2pd."""


class FrameStream:
    """Frames to and from one peer on one stream."""

    def __init__(
        self, peer: PeerId, reader: ByteReader, writer: ByteWriter, *, progress_timeout_s: float = PROGRESS_TIMEOUT_S
    ) -> None:
        self.peer = peer
        self._room: StreamRoom | None = None
        self._place: StreamPlace | None = None
        self.network = ""  # that its place is counted with
        self._reader = reader
        self._channel = reader if isinstance(reader, BothWays) else None  # TLS vouches for every byte of it
        self.omits_digests = False  # the other side of a data connection takes pieces without one (S11.8)
        self._writer = writer
        self._progress_timeout_s = progress_timeout_s
        self.standing: Standing = "stranger"
        """What its opener is; known once its HELLO was judged."""
        self.give_back: Callable[[bool], None] | None = None
        """Called in place of closing when this is one exchange on a connection that may carry others: with True when
        the exchange has come to its end."""
        self.on_written: Callable[[], None] | None = None
        """Told when all of its exchange is written, which then leaves room for the next one; None: nobody is told."""
        self._is_done = self._is_ended = self.is_broken = self.has_rested = self.is_behind = False
        """It is on a connection that was there before, without one for a while; `is_behind`: behind another one."""
        self.on_refused: Callable[[Refused], None] = lambda refused: None
        """Told before `read` raises it."""
        self.bytes_sent = self.bytes_received = 0

    @property
    def is_stale(self) -> bool:
        """The other side ended it while it rested (S11.7), unnoticed until now: what was asked can be asked anew."""
        return self.has_rested and self._is_ended and not self.bytes_received

    def take_place(self, room: StreamRoom, place: StreamPlace) -> None:
        """The other side opened it: from now on its half-sent frames are counted, until it is closed."""
        self._room, self._place, self.network = room, place, place.network

    async def _read_exactly(self, length: int, expected: Kinds, timeout_s: float) -> bytearray | memoryview:
        """`length` bytes, the first within `timeout_s`, then steady progress. A cut is a PeerError, nobody's fault."""
        before, silence_s = self.bytes_received, self._progress_timeout_s
        patience = Patience.of(length, timeout_s, silence_s, is_data=self._channel is not None)
        try:
            data = await (self._read_stream if self._channel is None else self._read_channel)(length, patience)
        except TimeoutError:
            self.is_broken, num = True, self.bytes_received - before
            took = f"{num} of {length} bytes within {silence_s:g} s" if num else f"nothing within {timeout_s:g} s"
            raise PeerError(f"{self.peer} sent {took} while {FrameKind.named(expected)} was due") from None
        except OSError as error:
            self.is_broken = self._is_ended = True
            raise PeerError(f"{self.peer}: connection broke ({error})") from error
        if len(data) < length:
            self._is_ended, where = True, f"after {len(data)} of {length} bytes of" if data else "before"
            raise PeerError(f"{self.peer} ended the stream {where} {FrameKind.named(expected)}")
        return data

    async def _read_channel(self, length: int, patience: Patience) -> memoryview:
        assert self._channel is not None
        before = self._channel.num_read
        try:
            # A connection that rests waits for a prelude, and no frame is half then.
            hold = self._hold if length > PRELUDE_BYTES else (lambda num_bytes: None)
            return await self._channel.read_whole(length, patience, hold)
        finally:
            self.bytes_received += self._channel.num_read - before

    async def _read_stream(self, length: int, patience: Patience) -> bytearray:
        data, clock = bytearray(), asyncio.get_running_loop().time
        end, wait_s = clock() + patience.first_s + patience.whole_s, patience.first_s
        while len(data) < length:
            async with asyncio.timeout_at(min(end, clock() + wait_s)):
                chunk = await self._reader.read(length - len(data))
            if not chunk:
                break
            if not data:
                end, wait_s = clock() + patience.whole_s, patience.silence_s
            data += chunk
            self.bytes_received += len(chunk)
            if len(data) < length:
                self._hold(len(chunk))
        return data

    def _hold(self, num_bytes: int) -> None:
        if self._room is not None and self._place is not None and not self._place.is_over:
            self._room.grow(self._place, num_bytes)

    def _let_go(self) -> None:
        if self._room is not None and self._place is not None and not self._place.is_over:
            self._room.shrink(self._place)

    async def read(self, *expected: FrameKind, timeout_s: float | None = None) -> Frame:
        """The next frame, one of `expected`. Raises Refused, PeerError (broken, silent), WireError (bad bytes).

        `timeout_s` bounds the wait for the frame to begin; after that every read must make progress in its own time.
        """
        head = await self._read_exactly(PRELUDE_BYTES, expected, timeout_s or self._progress_timeout_s)
        prelude = decode_prelude(bytes(head), is_sealed=self._channel is not None)
        if prelude.kind not in expected and prelude.kind is not FrameKind.REFUSED:
            raise WireError("unexpected_frame", f"{prelude.kind.name} where {FrameKind.named(expected)} was due")
        try:
            payload = await self._read_exactly(prelude.length, expected, self._progress_timeout_s)
        finally:
            self._let_go()
        # A piece is written to its place from where it is; all others are small.
        frame = finish_frame(prelude, payload if prelude.kind is FrameKind.PIECE else bytes(payload))
        if frame.kind is FrameKind.REFUSED and FrameKind.REFUSED not in expected:
            refusal = PEER_MESSAGES.decode(frame.message)
            if not isinstance(refusal, Refuse):
                raise WireError("malformed", "REFUSED frame without a Refuse message")
            refused = Refused(self.peer, refusal.code, refusal.detail, refusal.proof)
            self.on_refused(refused)
            raise refused
        return frame

    async def is_at_end(self, *, timeout_s: float | None = None) -> bool:
        """Waits for one byte or the end of the stream; True if it is the end."""
        try:
            async with asyncio.timeout(timeout_s or self._progress_timeout_s):
                return not await self._reader.read(1)
        except (TimeoutError, OSError):
            return False

    async def throw_away(self, length: int, *, timeout_s: float) -> None:
        """Reads up to the end of the stream, `length` bytes or `timeout_s`, whichever is first."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(timeout_s):
                while length > 0 and (chunk := await self._reader.read(min(length, WRITE_BYTES))):
                    length -= len(chunk)

    async def write(self, kind: FrameKind, *parts: bytes | memoryview) -> None:
        """Send one frame; returns when the local buffer has room again. Raises PeerError if that makes no progress."""
        frame = (encode_prelude(kind, parts, is_digested=kind is not FrameKind.PIECE or not self.omits_digests), *parts)
        if self._channel is not None:
            await self._send(self._channel.writelines, frame, sum(map(len, frame)))
        else:
            for data in in_blocks(frame, WRITE_BYTES):
                await self._send(self._writer.write, data, len(data))

    async def _send(self, write: Callable[[Any], None], what: object, length: int) -> None:
        try:
            write(what)
            if self._channel is None:
                async with asyncio.timeout(self._progress_timeout_s):
                    await self._writer.drain()
            elif not self._channel.has_room:
                await self._channel.drain_within(self._progress_timeout_s)
        except (OSError, RuntimeError) as error:  # uvloop: RuntimeError when the transport is closed
            self.is_broken = True
            is_silent = isinstance(error, TimeoutError)
            self._is_ended = not is_silent
            how = f" took nothing for {self._progress_timeout_s:g} s" if is_silent else f": connection broke ({error})"
            raise PeerError(f"{self.peer}{how}") from error
        self.bytes_sent += length

    async def refuse(self, code: str, detail: str, proof: bytes = b"") -> None:
        """Tell the other side why it gets nothing; best effort."""
        refusal = PEER_MESSAGES.encode(Refuse(one_line(code[:200]), one_line(detail[:500]), proof))
        with contextlib.suppress(PeerError):
            await self.write(FrameKind.REFUSED, refusal)

    def done(self) -> None:
        """The exchange has come to its end, and the other side knows; `close` is still due."""
        self._is_done = True

    def close(self) -> None:
        if self._room is not None and self._place is not None:
            self._room.leave(self._place)
        if self.give_back is None:
            self._writer.close()
            return
        give_back, self.give_back = self.give_back, lambda is_clean: None
        give_back(self._is_done)


ServeStream = Callable[[FrameStream, Hello], Awaitable[None]]
Enter = Callable[[], Awaitable[None]]
Admits = Literal["everybody", "visitors", "members"]
"""For whom a stream protocol is; who does not know the run yet may be a visitor, never a member."""


def unix_ms() -> int:
    """Wall clock for records and hellos."""
    return time.time_ns() // 1_000_000


class StreamGate:
    """Opens streams with our HELLO, and lets in streams whose HELLO is acceptable."""

    def __init__(
        self, node: StreamOpener, run_id: RunId | None, guard: PeerGuard, doors: Doorkeeper | None = None
    ) -> None:
        self._node = node
        self.run_id = run_id
        """None: we are a joiner and do not know the run yet."""
        self.guard = guard
        self.doors = doors or Doorkeeper()
        self.room = StreamRoom()
        """Of the streams that others open."""
        self.network: Callable[[PeerId], str] = lambda peer: ""
        """The network that a peer talks from (room.network_of); empty: not known, or through a relay."""
        self.data: DataWays | None = None
        """None: everything goes over p2pd."""
        self.data_port: Callable[[], int] = lambda: 0
        """Where others reach us by data connections, now; 0: nowhere."""
        self.progress_timeout_s = PROGRESS_TIMEOUT_S
        self.on_rejected: Callable[[PeerId, WireError], None] = lambda peer, error: None
        """Told of every bad input, after it was counted."""
        self.on_turned_away: Callable[[PeerId, bytes], None] = lambda peer, proof: None
        """Told of a peer that takes us for no member, with what it sent as proof."""
        self._refusals = 0

    def hello(self, record: bytes = b"") -> Hello:
        """Our HELLO, now."""
        own = self.doors.own
        return Hello(PROTOCOL_MAJOR, PROTOCOL_MINOR, self.run_id or "", unix_ms(), record, own, self.data_port())

    def bare_hello(self) -> Hello:
        """What a stranger is told: which run, and which protocol."""
        return Hello(PROTOCOL_MAJOR, PROTOCOL_MINOR, self.run_id or "", unix_ms(), b"", b"", 0)

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0, record: bytes = b"") -> FrameStream:
        """A stream to `peer` on which our HELLO is written. The caller closes it. Raises PeerError."""
        stream = await self.data.take(peer, protocol) if self.data is not None else None
        if stream is None:
            reader, writer = await self._node.open_stream(peer, protocol, timeout_s=timeout_s)
            stream = FrameStream(peer, reader, writer, progress_timeout_s=self.progress_timeout_s)
        stream.on_refused = functools.partial(self._on_refused, peer)
        try:
            await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(self.hello(record)))
        except (PeerError, asyncio.CancelledError) as error:
            stream.close()
            if isinstance(error, PeerError) and stream.is_stale:
                return await self.open(peer, protocol, timeout_s=timeout_s, record=record)
            raise
        return stream

    def _on_refused(self, peer: PeerId, refused: Refused) -> None:
        if refused.code in NOT_LET_IN:
            self.on_turned_away(peer, refused.proof)

    async def ask(
        self, peer: PeerId, protocol: str, request: Callable[[FrameStream], Awaitable[T]], enter: Enter | None = None
    ) -> tuple[FrameStream, T]:
        """A stream to `peer`, and what `request` wrote and read on it; on another one if the first was stale. Who asks
        closes it. `enter` is awaited before each. Raises PeerError, WireError."""
        num_behind = 0
        while True:  # only so many connections rest
            if enter is not None:
                await enter()
            with contextlib.ExitStack() as ends:
                ends.callback((stream := await self.open(peer, protocol)).close)
                try:
                    answer = await request(stream)
                except PeerError:
                    if not stream.is_stale or (num_behind := num_behind + stream.is_behind) > REPEATS_MAX:
                        raise
                else:
                    ends.pop_all()
                    return stream, answer

    def _check(self, hello: object, admits: Admits) -> Hello:
        if not isinstance(hello, Hello):
            raise WireError("malformed", "HELLO frame without a Hello message")
        if hello.protocol_major != PROTOCOL_MAJOR:
            raise WireError("wrong_protocol", other_protocols(asked=PROTOCOL_MAJOR, asking=hello.protocol_major))
        if self.run_id is None:
            raise WireError("not_ready", "this peer has not joined a run yet")
        if hello.run_id != self.run_id and not (admits != "members" and hello.run_id == ""):
            raise WireError("wrong_run", f"this peer is in run {self.run_id}")
        return hello

    def _judge(self, stream: FrameStream, hello: Hello, admits: Admits) -> None:
        now_s = asyncio.get_running_loop().time()
        stream.standing = self.doors.judge(stream.peer, hello, unix_ms(), now_s, is_for_members=admits == "members")
        is_enough = stream.standing == "member" or (admits == "visitors" and stream.standing == "visitor")
        if admits != "everybody" and not is_enough:
            raise WireError("not_admitted", "this run admits sites by invite; join with the whole link")

    async def serve(
        self,
        handler: ServeStream,
        peer: PeerId,
        reader: ByteReader,
        writer: ByteWriter,
        *,
        admits: Admits = "members",
        data_from: str | None = None,
    ) -> None:
        """Run `handler` for one incoming stream. Bad input ends the stream, is counted, and goes no further.

        `data_from`: the network of a data connection, which carries one exchange after the other; None: a stream."""
        stream = FrameStream(peer, reader, writer, progress_timeout_s=self.progress_timeout_s)
        try:
            self.guard.admit(peer)
            place = self.room.enter(peer, self.network(peer) if data_from is None else data_from, stream.close)
            stream.take_place(self.room, place)
            if data_from is None:
                await handler(stream, await self._read_hello(stream, admits))
            else:
                await self._serve_data(stream, place, handler, admits)
            await stream.is_at_end()
        except (WireError, ProtocolViolation) as error:
            bad = error if isinstance(error, WireError) else WireError("violation", f"{error.rule}: {error.detail}")
            self.guard.count(peer, bad.code)
            if bad.code != "banned":  # the ban was told; each further knock is not news
                self.on_rejected(peer, bad)
            await stream.refuse(bad.code, bad.detail, bad.proof)
            await self._hear_out(stream)
        except PeerError:
            pass  # it broke or fell silent; its own side knows, and whoever waits for the data has a deadline
        finally:
            stream.close()

    async def _read_hello(self, stream: FrameStream, admits: Admits, *, timeout_s: float | None = None) -> Hello:
        frame = await stream.read(FrameKind.HELLO, timeout_s=timeout_s)
        self._judge(stream, hello := self._check(PEER_MESSAGES.decode(frame.message), admits), admits)
        return hello

    async def _serve_data(self, stream: FrameStream, place: StreamPlace, handler: ServeStream, admits: Admits) -> None:
        """Exchanges until the opener ends the connection, or uses it no more; it rests between them."""
        if not self.doors.is_member(stream.peer):
            raise WireError("not_admitted", "data connections are for members")
        await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(self.bare_hello()))
        while True:
            self.room.rest(place)
            hello = await self._read_hello(stream, admits, timeout_s=DATA_IDLE_S)
            self.room.work(place)
            stream.omits_digests = hello.protocol_minor >= UNDIGESTED_SINCE_MINOR
            await handler(stream, hello)
            self.guard.admit(stream.peer)

    async def _hear_out(self, stream: FrameStream) -> None:
        if self._refusals >= REFUSALS_MAX:
            return
        self._refusals += 1
        try:
            await stream.throw_away(REFUSAL_BYTES_MAX, timeout_s=REFUSAL_TIMEOUT_S)
        finally:
            self._refusals -= 1
