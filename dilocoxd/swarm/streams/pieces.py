"""Pieces of bulk payloads: where bytes come from and go to (file descriptor + offset), never whole in memory.

A payload is cut into pieces of PIECE_BYTES; a bitmap says which ones are there. Descriptors are memfds (copied in
the event loop, microseconds) or files on disk (copied in a thread, because a disk may stall).
"""

import asyncio
import hashlib
import os
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.wire.frames import PIECE_BYTES

PAYLOAD_BYTES_MAX: Final = 64 * 1024**3
HASH_STEP_BYTES: Final = 1024 * 1024


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
        """The bytes of one piece. Raises StoreError if the descriptor is shorter than promised."""
        return await self._read(index * PIECE_BYTES, self.piece_bytes(index))

    async def _read(self, start: int, length: int) -> bytes:
        arguments = (self.fd, length, self.offset + start)
        data = await asyncio.to_thread(os.pread, *arguments) if self.is_on_disk else os.pread(*arguments)
        if len(data) != length:
            raise StoreError(f"descriptor {self.fd} gave {len(data)} of {length} bytes at {self.offset + start}")
        return data

    async def write_piece(self, index: int, data: memoryview) -> None:
        """Write one piece at its place. Raises WireError (wrong length), StoreError (disk full)."""
        if len(data) != self.piece_bytes(index):
            raise WireError("out_of_range", f"piece {index} has {len(data)} bytes, not {self.piece_bytes(index)}")
        try:
            if self.is_on_disk:
                await asyncio.to_thread(_write_all, self.fd, data, self.offset + index * PIECE_BYTES)
            else:
                _write_all(self.fd, data, self.offset + index * PIECE_BYTES)
        except OSError as error:
            raise StoreError(f"cannot write received bytes: {error.strerror}") from error

    async def sha256(self) -> bytes:
        """Digest of the region, computed in a thread."""
        return await asyncio.to_thread(_hash_region, self)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _hash_region(region: Region) -> bytes:
    digest = hashlib.sha256()
    position, end = region.offset, region.offset + region.length
    while position < end:
        data = os.pread(region.fd, min(HASH_STEP_BYTES, end - position), position)
        if not data:
            raise StoreError(f"descriptor {region.fd} ends at {position}, {end} was due")
        digest.update(data)
        position += len(data)
    return digest.digest()


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
