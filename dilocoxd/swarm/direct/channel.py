"""Bytes of one data connection: what is read goes from TLS into the reader's own buffer.

asyncio's streams copy each byte twice more; at a gigabit per second that is a good part of what a transfer costs.
"""

import asyncio
from typing import Final, cast

SPILL_BYTES: Final = 64 * 1024
"""Arrives before anybody has asked for it; more waits in the kernel, whose window then tells the other side."""


class Channel(asyncio.BufferedProtocol):
    """Both directions of one connection. One reader and one writer at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._spill = bytearray(SPILL_BYTES)
        self._start = self._end = 0
        """Of what is in the spill and not read yet."""
        self._target: memoryview | None = None
        self._taken = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_paused = False
        self._is_ended = self._is_aborted = False
        self._error: Exception | None = None

    # ---- asyncio's side ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._target is not None:
            return self._target[self._taken :]
        if self._start == self._end:
            self._start = self._end = 0
        return memoryview(self._spill)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_aborted:
            return
        if self._target is not None:
            self._taken += nbytes
            if self._taken == len(self._target):
                self._target = None
        else:
            self._end += nbytes
            if self._end == SPILL_BYTES and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        self._wake(self._reader)

    def eof_received(self) -> bool:
        self._is_ended = True
        self._wake(self._reader)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
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

    async def read_into(self, target: memoryview) -> int:
        """How many bytes were written to the start of `target`, at least one; 0 at the end. Raises OSError."""
        if self._start != self._end:
            return self._from_spill(target)
        if self._is_ended:
            if isinstance(self._error, OSError):
                raise self._error
            return 0
        self._target, self._taken = target, 0
        self._resume()
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None
            taken, self._target = self._taken, None
        if not taken and isinstance(self._error, OSError):
            raise self._error
        return taken

    def _from_spill(self, target: memoryview) -> int:
        count = min(len(target), self._end - self._start)
        target[:count] = memoryview(self._spill)[self._start : self._start + count]
        self._start += count
        if self._start == self._end:
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
        return bytes(data[: await self.read_into(memoryview(data))])

    def write(self, data: bytes | memoryview) -> None:
        """Queue these bytes. Raises OSError when the connection is over."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is over")
        self._transport.write(data)

    async def drain(self) -> None:
        """Return when there is room for more. Raises OSError when the connection is over."""
        while self._is_full and not self._is_ended:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self._is_ended:
            raise self._error if isinstance(self._error, OSError) else ConnectionResetError("the connection is over")

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
