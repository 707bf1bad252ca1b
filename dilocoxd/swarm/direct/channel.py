"""Bytes of one data connection: what is read goes from TLS into the reader's own buffer.

asyncio's streams copy each byte twice more; at a gigabit per second that is a good part of what a transfer costs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from dilocoxd.errors import WireError
from dilocoxd.swarm.direct.kernel import Moving, Options, Written, came_s
from dilocoxd.swarm.streams import ends
from dilocoxd.swarm.streams.ends import Patience
from dilocoxd.wire.frames import PIECE_BYTES, PIECE_HEADER_BYTES

WHOLE_BYTES: Final = PIECE_HEADER_BYTES + PIECE_BYTES
"""Of a frame that carries a whole piece."""
BLOCK_BYTES: Final = PIECE_HEADER_BYTES + PIECE_BYTES // 4
"""Kept ready for what is due; once it is full, there is room for all of it: no frame takes more memory than four times
what came of it."""
SPILL_BYTES: Final = 2 * 1024
"""Arrives before anybody has asked for it: the front of a frame, or a few small ones. More waits, undeciphered or in
the kernel, whose window then tells the other side; what is large goes to its place without another copy."""
SPARE_MAX: Final = 48
"""Buffers that are kept for the pieces to come."""


class SpareBuffers:
    """Memory of pieces that were given away, used again: fresh memory costs zeros, and a page fault for each 4 KiB."""

    def __init__(self) -> None:
        self._kept: deque[bytearray] = deque(maxlen=SPARE_MAX)

    def take(self, length: int) -> bytearray:
        """So many bytes, of any content if they are those of a whole piece."""
        if length != WHOLE_BYTES:
            return bytearray(length)
        for _ in range(len(self._kept)):
            buffer = self._kept.pop()  # given back last, and so still in the processor's cache
            if _is_free(buffer):
                return buffer
            self._kept.appendleft(buffer)
        return bytearray(length)

    def give(self, buffer: bytearray) -> None:
        """It may be used again once nobody looks at it."""
        if len(buffer) == WHOLE_BYTES:
            self._kept.append(buffer)


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:  # there is a view of it: of a thread that writes it to a disk, even if nobody waits for that
        return False
    return True


_SPARE: Final = SpareBuffers()


class Channel(asyncio.BufferedProtocol):
    """Both directions of one connection. One reader and one writer at a time."""

    def __init__(self) -> None:
        self.on_ended: Callable[[], None] = lambda: None
        """Told, perhaps twice, when the other side, or the way to it, has ended the connection."""
        self.num_read = 0
        """Bytes that readers were given."""
        self.num_heard = 0
        """Bytes that came, for which TLS has vouched; those of half a frame, too."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._spill = bytearray(SPILL_BYTES)
        self._start = self._end = 0
        """Of what is in the spill and not read yet."""
        self._target: memoryview | None = None
        """Of what is read now, the part that has room and is not filled yet."""
        self._data = bytearray()
        self._filled = self._length = 0
        """Of what is read now: how much is here, how much is due."""
        self._hold: Callable[[int], None] = lambda num_bytes: None
        self._heard_at = 0.0
        """When the last bytes came for it; `_heard_first`: the first ones of all that are read at once."""
        self._heard_first: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sock: Options | None = None
        self._written = Written(None)
        self._moving: Moving | None = None
        """Of what was written when the wait for what is read now began."""
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_paused = False
        self._is_ended = self._is_aborted = False
        self._error: Exception | None = None

    # ---- asyncio's side ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._sock = transport.get_extra_info("socket")
        self._written = Written(self._sock)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._target is not None:
            return self._target
        if self._start == self._end:
            self._start = self._end = 0
        return memoryview(self._spill)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_aborted:
            return
        self.num_heard += nbytes
        if self._target is not None:
            self._filled += nbytes
            self._heard_at = self._loop.time()
            if self._heard_first is None:
                self._heard_first = self._heard_at
            if self._filled < self._length:
                try:
                    self._aim()
                except WireError as error:  # no more room for half of a frame
                    self._target = None
                    if self._reader is not None and not self._reader.done():
                        self._reader.set_exception(error)
                return
            self._target = None
        else:
            self._end += nbytes
            if self._end == SPILL_BYTES and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        self._wake(self._reader)

    def eof_received(self) -> bool:
        self.on_ended()
        self._is_ended = True
        self._wake(self._reader)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_aborted:
            self.on_ended()
        self._is_ended = True
        self._error = exc or self._error
        self._target = None
        self._wake(self._reader)
        self._wake(self._writer)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake(self._writer)

    @staticmethod
    def _wake(waiter: "asyncio.Future[None] | None") -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- our side ---------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Ended or broken, or with bytes that nobody asked for: between two exchanges nothing is due."""
        return self._start != self._end or self.is_ended

    @property
    def is_ended(self) -> bool:
        """Ended or broken; what came before may be unread."""
        return self._is_ended or self._transport is None or self._transport.is_closing()

    async def read_whole(self, length: int, patience: Patience, hold: Callable[[int], None]) -> memoryview:
        """So many bytes, fewer only at the end; they stay as they are for as long as somebody looks at them. `hold` is
        told what is kept ready for bytes that have not come.

        Raises OSError; TimeoutError, when the reader has no more patience.
        """
        self._data, self._filled, self._length, self._hold = bytearray(min(BLOCK_BYTES, length)), 0, length, hold
        self._filled = self._take(memoryview(self._data))
        self._heard_at = self._loop.time()
        self._heard_first = self._heard_at if self._filled else None
        try:
            if self._filled < length:
                self._hold(len(self._data))
                await self._fill(patience)
            return memoryview(self._data)[: self._filled]
        finally:
            _SPARE.give(self._data)
            self._data = bytearray()

    def _aim(self) -> None:
        """What comes next goes behind what is here, in more room if there is none left. Raises what `hold` raises."""
        if self._filled == len(self._data):
            self._hold(self._length - self._filled)
            larger = _SPARE.take(self._length)
            larger[: self._filled] = self._data
            self._data = larger
        self._target = memoryview(self._data)[self._filled :]

    async def _fill(self, patience: Patience) -> None:
        """Return when all is here, or the connection has ended."""
        if not self._is_ended:
            before = self._filled
            self._patience = patience
            self._moving = Moving(self._written, self._loop.time(), ends.DATA_BYTES_PER_S_MIN)
            self._aim()
            self._resume()
            self._reader = self._loop.create_future()
            self._look(self._reader)
            try:
                await self._reader
            finally:
                self._reader = self._target = None
                if self._timer is not None:
                    self._timer.cancel()
                self.num_read += self._filled - before
        if not self._filled and isinstance(self._error, OSError):
            raise self._error

    def _look(self, reader: "asyncio.Future[None]") -> None:
        """End the wait when it has lasted too long; else look again when it will have."""
        patience, now = self._patience, self._loop.time()
        look: float | None
        if self._heard_first is None:
            assert self._moving is not None
            look = self._moving.next_look(patience.first_s, now)
        else:
            due = min(self._heard_at + patience.silence_s, self._heard_first + patience.whole_s)
            if now >= due:  # a record of TLS may be on its way for longer: we hear of it once it is whole
                heard_at = max(self._heard_at, now - came_s(self._sock))
                due = min(heard_at + patience.silence_s, self._heard_first + patience.whole_s)
            look = due if now < due else None
        if look is not None:
            self._timer = self._loop.call_at(look, self._look, reader)
        elif not reader.done():
            reader.set_exception(TimeoutError())

    def _take(self, target: memoryview) -> int:
        """What is here already."""
        count = min(len(target), self._end - self._start)
        target[:count] = memoryview(self._spill)[self._start : self._start + count]
        self._start += count
        self.num_read += count
        if count and self._start == self._end:
            self._start = self._end = 0
            self._resume()
        return count

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None and not self._is_ended:
            self._is_paused = False
            self._transport.resume_reading()

    async def read(self, length: int) -> bytes:
        """At most `length` bytes, at least one; none at the end. Raises OSError."""
        data = bytearray(length)
        while not (count := self._take(memoryview(data))):
            if self._is_ended:
                if isinstance(self._error, OSError):
                    raise self._error
                return b""
            self._resume()
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return bytes(data[:count])

    def write(self, data: bytes | memoryview) -> None:
        """Queue these bytes. Raises OSError when the connection is over."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is over")
        self._written.add(len(data))
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """The same, of several: those that are small go as one record of TLS, in one packet with what is large."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is over")
        small: list[bytes | memoryview] = []
        for part in parts:
            if len(part) < SPILL_BYTES:
                small.append(part)
            else:
                self._written.add(len(part))
                if small:
                    self._written.add(sum(map(len, small)))
                self._transport.writelines((b"".join(small), part) if small else (part,))
                small.clear()
        if small:
            self.write(b"".join(small))

    @property
    def has_room(self) -> bool:
        """`drain` would not wait."""
        return not self._is_full and not self._is_ended

    async def drain(self) -> None:
        """Return when there is room for more. Raises OSError when the connection is over."""
        while self._is_full and not self._is_ended:
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self._is_ended:
            raise self._error if isinstance(self._error, OSError) else ConnectionResetError("the connection is over")

    async def drain_within(self, silence_s: float) -> None:
        """The same. Raises TimeoutError once nothing of what was written has moved for `silence_s`."""
        clock = self._loop.time
        moving = Moving(self._written, clock(), ends.DATA_BYTES_PER_S_MIN)
        while (look := moving.next_look(silence_s, clock())) is not None:
            try:
                async with asyncio.timeout_at(look) as limit:
                    return await self.drain()
            except TimeoutError:
                if not limit.expired():  # the connection broke for want of an answer
                    raise
        raise TimeoutError

    def close(self) -> None:
        """End the connection once what was written has been sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()  # a second time, asyncio of Python 3.11.2 cannot be told to abort any more

    def abort(self) -> None:
        """End it now; what was not sent is not sent, and what was not read is not for who reads next."""
        self._is_ended = self._is_aborted = True
        self._start = self._end = 0
        self._wake(self._reader)
        if self._transport is not None:
            self._transport.abort()
