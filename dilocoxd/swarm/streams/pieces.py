"""Pieces of bulk payloads: where bytes come from and go to (file descriptor + offset), never whole in memory.

A payload is cut into pieces of PIECE_BYTES; a bitmap says which ones are there. Descriptors are memfds (copied in
the event loop, microseconds) or files on disk (copied in a thread, because a disk may stall). A thread has descriptors
of its own: a task that is cancelled does not wait for it, the owner closes the region's descriptor then, and the next
file that anybody opens gets its number.
"""

import asyncio
import fcntl
import hashlib
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from dilocoxd.errors import StoreError, WireError
from dilocoxd.store.durable import write_all
from dilocoxd.wire.frames import PIECE_BYTES

PAYLOAD_BYTES_MAX: Final = 64 * 1024**3
HASH_STEP_BYTES: Final = 256 * 1024
MAP_STEP_BYTES: Final = 4 * 1024 * 1024
"""Of shared memory that is looked at without a copy; so much of it counts as ours meanwhile."""
EARLY_MAX: Final = 32
"""Pieces that wait in memory for those in front of them: to map their place, and to hash it there, costs more."""
TURN_PIECES: Final = 8
"""Hashed at a time when the one in front of them comes: a millisecond, in which the event loop does nothing else."""
_F_GET_SEALS: Final = 1034
_F_SEAL_SHRINK: Final = 2

T = TypeVar("T")


class _Lent:
    """Duplicates for one thread. Who comes first closes them: the thread when it is through, or `end` if the task that
    wanted it was cancelled before it began."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds: list[int] = []
        self._is_taken = threading.Lock()
        try:
            for fd in fds:
                self._fds.append(os.dup(fd))
        except OSError:  # too many are open
            self._close()
            raise

    def work(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """In the thread: `work(*descriptors, *arguments)`; nothing once it is ended."""
        if not self._is_taken.acquire(blocking=False):
            return None
        try:
            return work(*self._fds, *arguments)
        finally:
            self._close()

    def end(self) -> None:
        """Nobody waits any more."""
        if self._is_taken.acquire(blocking=False):
            self._close()

    def _close(self) -> None:
        for fd in self._fds:
            os.close(fd)


async def in_thread(fds: Sequence[int], work: Callable[..., T], *arguments: Any) -> T:
    """`work(*duplicates of fds, *arguments)` in a thread. Raises what it raises."""
    lent = _Lent(fds)
    try:
        return cast(T, await asyncio.to_thread(lent.work, work, *arguments))
    finally:
        lent.end()


@dataclass(frozen=True, slots=True)
class Region:
    """`length` bytes at `offset` of a descriptor that its owner keeps open during the transfer."""

    fd: int
    offset: int
    length: int
    is_on_disk: bool = False

    @property
    def num_pieces(self) -> int:
        return -(-self.length // PIECE_BYTES)

    def piece_bytes(self, index: int) -> int:
        """Length of piece `index`. Raises WireError if there is no such piece."""
        if not 0 <= index < self.num_pieces:
            raise WireError("out_of_range", f"piece {index} of {self.num_pieces}")
        return min(PIECE_BYTES, self.length - index * PIECE_BYTES)

    async def read_piece(self, index: int) -> bytes:
        """The bytes of one piece. Raises StoreError if they cannot be read, or there are fewer than promised."""
        return await self._read(index * PIECE_BYTES, self.piece_bytes(index))

    async def _read(self, start: int, length: int) -> bytes:
        offset = self.offset + start
        try:
            if self.is_on_disk:
                data = await in_thread((self.fd,), os.pread, length, offset)
            else:
                data = os.pread(self.fd, length, offset)
        except OSError as error:
            raise StoreError(f"cannot read bytes to send: {error.strerror}") from error
        if len(data) != length:
            raise StoreError(f"descriptor {self.fd} gave {len(data)} of {length} bytes at {self.offset + start}")
        return data

    async def write_piece(self, index: int, data: memoryview) -> None:
        """Write one piece at its place. Raises WireError (wrong length), StoreError (disk full)."""
        if len(data) != self.piece_bytes(index):
            raise WireError("out_of_range", f"piece {index} has {len(data)} bytes, not {self.piece_bytes(index)}")
        offset = self.offset + index * PIECE_BYTES
        try:
            if self.is_on_disk:
                await in_thread((self.fd,), write_all, data, offset)
            else:
                write_all(self.fd, data, offset)
        except OSError as error:
            raise StoreError(f"cannot write received bytes: {error.strerror}") from error

    async def sha256(self, begun: "HashInOrder | None" = None) -> bytes:
        """Digest of the region, computed in a thread but for what `begun` has of it. Raises StoreError."""
        digest, done = (hashlib.sha256(), 0) if begun is None else begun.so_far()
        try:
            if done < self.length:
                await in_thread((self.fd,), _hash_on, digest, self.offset + done, self.length - done)
        except OSError as error:
            raise StoreError(f"cannot read bytes to hash them: {error.strerror}") from error
        return digest.digest()


class HashInOrder:
    """sha256 of a region while its pieces come, from the memory in which they came; one that is early waits there for
    those in front of it, as long as there is room."""

    def __init__(self, early: "EarlyPieces | None" = None) -> None:
        """`early`: where pieces wait; None: they do not, and what follows the first gap is read from its place."""
        self._digest = hashlib.sha256()
        self._num_pieces = self._num_bytes = 0
        self._early = early

    def add(self, index: int, data: memoryview) -> None:
        """Piece `index` was written to its place, and will change neither there nor here."""
        if index == self._num_pieces:
            self._update(data)
        elif self._early is not None:
            self._early.put(self, index, data)
        for _ in range(TURN_PIECES):
            if self._early is None or (waiting := self._early.take(self, self._num_pieces)) is None:
                return
            self._update(waiting)

    def _update(self, data: memoryview) -> None:
        self._digest.update(data)
        self._num_pieces += 1
        self._num_bytes += len(data)

    def give_up(self) -> None:
        """One of its pieces lost its place: what follows is read from where it was written."""
        self._early = None

    def so_far(self) -> "tuple[hashlib._Hash, int]":
        """A digest to go on with, and of how many bytes it is."""
        return self._digest.copy(), self._num_bytes


class EarlyPieces:
    """Pieces that came before those in front of them, of all payloads together."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[HashInOrder, int], memoryview] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        """Of all payloads."""
        return len(self._waiting)

    def put(self, hashed: HashInOrder, index: int, data: memoryview) -> None:
        """Keep one; who waits longest makes room."""
        self._waiting[hashed, index] = data
        while self.num_waiting > EARLY_MAX:
            (other, _), _ = self._waiting.popitem(last=False)
            self.forget(other)

    def take(self, hashed: HashInOrder, index: int) -> memoryview | None:
        """It is its turn; None: it is not here."""
        return self._waiting.pop((hashed, index), None)

    def forget(self, hashed: HashInOrder) -> None:
        """Nothing of it waits any more, nor will."""
        hashed.give_up()
        for key in [key for key in self._waiting if key[0] is hashed]:
            del self._waiting[key]


def _hash_on(fd: int, digest: "hashlib._Hash", offset: int, length: int) -> None:
    if _keeps_its_size(fd) and os.fstat(fd).st_size >= offset + length:
        for start in range(offset, offset + length, MAP_STEP_BYTES):
            _hash_mapped(fd, digest, start, min(MAP_STEP_BYTES, offset + length - start))
        return
    step = memoryview(bytearray(min(length, HASH_STEP_BYTES)))
    position, end = offset, offset + length
    while position < end:
        count = os.preadv(fd, [step[: end - position]], position)
        if not count:
            raise StoreError(f"the file ends at {position}, {end} was due")
        digest.update(step[:count])
        position += count


def _hash_mapped(fd: int, digest: "hashlib._Hash", offset: int, length: int) -> None:
    front = offset % mmap.ALLOCATIONGRANULARITY
    place = {"offset": offset - front, "flags": mmap.MAP_SHARED | mmap.MAP_POPULATE, "prot": mmap.PROT_READ}
    try:
        with mmap.mmap(fd, front + length, **place) as mapped, memoryview(mapped) as whole, whole[front:] as part:
            digest.update(part)
    except OSError as error:
        raise StoreError(f"cannot look at received bytes: {error.strerror}") from error


def _keeps_its_size(fd: int) -> bool:
    """One that shrank under a mapping would end us."""
    try:
        return bool(fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK)
    except OSError:  # no memory file
        return False


@dataclass(slots=True)
class PieceSet:
    """Which pieces of a payload are there."""

    num_pieces: int
    _bits: bytearray = field(init=False)
    num_present: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._bits = bytearray(-(-self.num_pieces // 8))

    def __contains__(self, index: int) -> bool:
        return bool(self._bits[index >> 3] >> (index & 7) & 1)

    def add(self, index: int) -> None:
        if index not in self:
            self._bits[index >> 3] |= 1 << (index & 7)
            self.num_present += 1

    def filled(self) -> "PieceSet":
        """The same number of pieces, all of them present."""
        bits = bytearray(b"\xff" * len(self._bits))
        if self.num_pieces % 8:
            bits[-1] = (1 << self.num_pieces % 8) - 1
        return PieceSet.from_bytes(bytes(bits), self.num_pieces)

    def clear(self) -> None:
        self._bits = bytearray(len(self._bits))
        self.num_present = 0

    @property
    def is_complete(self) -> bool:
        return self.num_present == self.num_pieces

    def missing(self) -> list[int]:
        return [index for index in range(self.num_pieces) if index not in self]

    def to_bytes(self) -> bytes:
        """Bit `i & 7` (least significant first) of byte `i >> 3` stands for piece i."""
        return bytes(self._bits)

    @classmethod
    def from_bytes(cls, data: bytes, num_pieces: int) -> "PieceSet":
        """The set that `to_bytes` gave. Raises WireError if it cannot belong to that many pieces."""
        pieces = cls(num_pieces)
        if len(data) != len(pieces._bits) or (num_pieces % 8 and data and data[-1] >> (num_pieces % 8)):
            raise WireError("malformed", f"bitmap of {len(data)} bytes for {num_pieces} pieces")
        pieces._bits = bytearray(data)
        pieces.num_present = sum(byte.bit_count() for byte in data)
        return pieces
