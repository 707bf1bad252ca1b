"""Frames on libp2p streams: who speaks (HELLO), progress time-outs on every read and write, and clean refusals.

Every stream starts with a HELLO of its opener, so each stream is authorised by itself and a restart on either side
needs no ceremony. The opener closes; the responder waits for the opener's end of stream. libp2p shows a crashed peer
as a clean end of stream, so an end where a frame was due is always a failure.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from dilocoxd.errors import PeerError, ProtocolViolation, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.guard import Guard
from dilocoxd.wire.frames import (
    PRELUDE_BYTES,
    Frame,
    FrameKind,
    decode_prelude,
    encode_prelude,
    finish_frame,
)
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, PROTOCOL_MINOR, Hello, Refuse

PROTOCOL_HELLO: Final = "/dilocoxd/hello"
PROTOCOL_MESSAGE: Final = "/dilocoxd/message"
PROTOCOL_CALL: Final = "/dilocoxd/call"
PROTOCOL_BULK: Final = "/dilocoxd/bulk"
PROTOCOL_FETCH: Final = "/dilocoxd/fetch"

PROGRESS_TIMEOUT_S: Final = 10.0
REFUSAL_TIMEOUT_S: Final = 5.0
"""So long a refused stream is read on, and what it brings thrown away, until its opener closes (S7)."""
REFUSAL_BYTES_MAX: Final = 1024 * 1024
REFUSALS_MAX: Final = 64
"""Refused streams that are read on at a time; those beyond are closed at once."""
WRITE_BYTES: Final = 64 * 1024
"""Largest write between two waits for the other side, so that a slow link still shows progress."""


class Refused(PeerError):
    """The other side answered Refuse."""

    def __init__(self, peer: str, code: str, detail: str) -> None:
        super().__init__(f"{peer} refused: {code}: {detail}")
        self.code = code
        self.detail = detail


class StreamOpener(Protocol):
    """The part of kademlia.Node that this floor uses."""

    async def open_stream(
        self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


class FrameStream:
    """Frames to and from one peer on one stream."""

    def __init__(
        self,
        peer: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        progress_timeout_s: float = PROGRESS_TIMEOUT_S,
    ) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._progress_timeout_s = progress_timeout_s
        self.bytes_sent = 0
        self.bytes_received = 0

    async def _read_exactly(self, length: int, what: str, timeout_s: float) -> bytes:
        """`length` bytes, fewer only if the stream ended; the first within `timeout_s`, then steady progress."""
        data = bytearray()
        while len(data) < length:
            try:
                async with asyncio.timeout(self._progress_timeout_s if data else timeout_s):
                    chunk = await self._reader.read(length - len(data))
            except TimeoutError:
                raise PeerError(f"{self.peer} sent nothing for {timeout_s:g} s while {what} was due") from None
            except OSError as error:
                raise PeerError(f"{self.peer}: connection broke ({error})") from error
            if not chunk:
                break
            data += chunk
            self.bytes_received += len(chunk)
        return bytes(data)

    async def read(self, *expected: FrameKind, timeout_s: float | None = None) -> Frame:
        """The next frame, one of `expected`. Raises Refused, PeerError (broken, silent), WireError (bad bytes).

        `timeout_s` bounds the wait for the frame to begin; after that every read must make progress in its own time.
        """
        what = " or ".join(kind.name for kind in expected) or "a refusal"
        head = await self._read_exactly(PRELUDE_BYTES, what, timeout_s or self._progress_timeout_s)
        if not head:
            raise PeerError(f"{self.peer} ended the stream before {what}")
        prelude = decode_prelude(head)
        if prelude.kind not in expected and prelude.kind is not FrameKind.REFUSED:
            raise WireError("unexpected_frame", f"{prelude.kind.name} where {what} was due")
        payload = await self._read_exactly(prelude.length, what, self._progress_timeout_s)
        frame = finish_frame(prelude, payload)
        if frame.kind is FrameKind.REFUSED and FrameKind.REFUSED not in expected:
            refusal = PEER_MESSAGES.decode(frame.payload)
            if not isinstance(refusal, Refuse):
                raise WireError("malformed", "REFUSED frame without a Refuse message")
            raise Refused(self.peer, refusal.code, refusal.detail)
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
        prelude = encode_prelude(kind, parts)
        if sum(len(part) for part in parts) <= WRITE_BYTES:
            await self._write_bytes(b"".join((prelude, *parts)))
            return
        await self._write_bytes(prelude)
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), WRITE_BYTES):
                await self._write_bytes(view[start : start + WRITE_BYTES])

    async def _write_bytes(self, data: bytes | memoryview) -> None:
        try:
            self._writer.write(data)
            async with asyncio.timeout(self._progress_timeout_s):
                await self._writer.drain()
        except TimeoutError:
            raise PeerError(f"{self.peer} took nothing for {self._progress_timeout_s:g} s") from None
        except (OSError, RuntimeError) as error:  # uvloop: RuntimeError when the transport is closed
            raise PeerError(f"{self.peer}: connection broke ({error})") from error
        self.bytes_sent += len(data)

    async def refuse(self, code: str, detail: str) -> None:
        """Tell the other side why it gets nothing; best effort."""
        refusal = PEER_MESSAGES.encode(Refuse(code[:200], detail[:500]))
        with contextlib.suppress(PeerError):
            await self.write(FrameKind.REFUSED, refusal)

    def close(self) -> None:
        self._writer.close()


ServeStream = Callable[[FrameStream, Hello], Awaitable[None]]


def unix_ms() -> int:
    """Wall clock for records and hellos."""
    return time.time_ns() // 1_000_000


class StreamGate:
    """Opens streams with our HELLO, and lets in streams whose HELLO is acceptable."""

    def __init__(self, node: StreamOpener, run_id: RunId | None, guard: Guard) -> None:
        self._node = node
        self.run_id = run_id
        """None: we are a joiner and do not know the run yet."""
        self.guard = guard
        self.progress_timeout_s = PROGRESS_TIMEOUT_S
        self.on_rejected: Callable[[PeerId, WireError], None] = lambda peer, error: None
        """Told of every bad input, after it was counted."""
        self._refusals = 0

    def hello(self, record: bytes = b"") -> Hello:
        """Our HELLO, now."""
        return Hello(PROTOCOL_MAJOR, PROTOCOL_MINOR, self.run_id or "", unix_ms(), record)

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0, record: bytes = b"") -> FrameStream:
        """A stream to `peer` on which our HELLO is written. The caller closes it. Raises PeerError."""
        reader, writer = await self._node.open_stream(peer, protocol, timeout_s=timeout_s)
        stream = FrameStream(peer, reader, writer, progress_timeout_s=self.progress_timeout_s)
        try:
            await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(self.hello(record)))
        except PeerError:
            stream.close()
            raise
        return stream

    def _check(self, hello: object, *, admits_joiners: bool) -> Hello:
        if not isinstance(hello, Hello):
            raise WireError("malformed", "HELLO frame without a Hello message")
        if hello.protocol_major != PROTOCOL_MAJOR:
            raise WireError("wrong_protocol", f"we speak protocol {PROTOCOL_MAJOR}, you speak {hello.protocol_major}")
        if self.run_id is None:
            raise WireError("not_ready", "this peer has not joined a run yet")
        if hello.run_id != self.run_id and not (admits_joiners and hello.run_id == ""):
            raise WireError("wrong_run", f"this peer is in run {self.run_id}")
        return hello

    async def serve(
        self,
        handler: ServeStream,
        peer: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        admits_joiners: bool = False,
    ) -> None:
        """Run `handler` for one incoming stream. Bad input ends the stream, is counted, and goes no further."""
        stream = FrameStream(peer, reader, writer, progress_timeout_s=self.progress_timeout_s)
        is_inside = False
        try:
            self.guard.enter(peer)
            is_inside = True
            frame = await stream.read(FrameKind.HELLO)
            hello = self._check(PEER_MESSAGES.decode(frame.payload), admits_joiners=admits_joiners)
            await handler(stream, hello)
            await stream.is_at_end()
        except (WireError, ProtocolViolation) as error:
            bad = error if isinstance(error, WireError) else WireError("violation", f"{error.rule}: {error.detail}")
            self.guard.count(peer, bad.code)
            if bad.code != "banned":  # the ban was told; each further knock is not news
                self.on_rejected(peer, bad)
            await stream.refuse(bad.code, bad.detail)
            await self._hear_out(stream)
        except PeerError:
            pass  # it broke or fell silent; its own side knows, and whoever waits for the data has a deadline
        finally:
            if is_inside:
                self.guard.leave(peer)
            stream.close()

    async def _hear_out(self, stream: FrameStream) -> None:
        if self._refusals >= REFUSALS_MAX:
            return
        self._refusals += 1
        try:
            await stream.throw_away(REFUSAL_BYTES_MAX, timeout_s=REFUSAL_TIMEOUT_S)
        finally:
            self._refusals -= 1
