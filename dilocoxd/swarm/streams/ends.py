"""What bytes come from and go to: a libp2p stream and who opens one, or a data connection."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from dilocoxd.ids import PeerId

FRAME_BYTES_PER_S_MIN: Final = 64 * 1024
"""A frame that has begun is complete within the time of a silence and that of its bytes at this speed (S3)."""
DATA_BYTES_PER_S_MIN: Final = 1024
"""The same on data connections, which members alone have: dozens may share a line of 0.4 Mbit/s."""


class ByteReader(Protocol):
    """asyncio.StreamReader, or the channel of a data connection."""

    async def read(self, n: int) -> bytes: ...


class ByteWriter(Protocol):
    """asyncio.StreamWriter, or the channel of a data connection."""

    def write(self, data: bytes | memoryview) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long bytes may take that are due."""

    first_s: float
    """Until the first one; by a data connection since what we wrote moved last."""
    silence_s: float
    """From one to the next."""
    whole_s: float
    """From the first one to the last."""

    @staticmethod
    def of(length: int, first_s: float, silence_s: float, *, is_data: bool) -> "Patience":
        """With a frame of `length` bytes, or a part of one; `is_data`: by a data connection."""
        bytes_per_s_min = DATA_BYTES_PER_S_MIN if is_data else FRAME_BYTES_PER_S_MIN
        return Patience(first_s, silence_s, silence_s + length / bytes_per_s_min)


@runtime_checkable
class BothWays(Protocol):
    """The channel of a data connection: wakes its reader once all is there, and knows what needs no waiting."""

    num_read: int

    async def read_whole(self, length: int, patience: Patience, hold: Callable[[int], None]) -> memoryview: ...

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None: ...

    async def drain_within(self, silence_s: float) -> None: ...

    @property
    def has_room(self) -> bool: ...


class StreamOpener(Protocol):
    """The part of kademlia.Node that this floor uses."""

    async def open_stream(
        self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


def in_blocks(parts: tuple[bytes | memoryview, ...], most: int) -> Iterator[bytes | memoryview]:
    """The parts one after the other, at most so many bytes at a time; joined where all are no more than that."""
    if sum(map(len, parts)) <= most:
        yield b"".join(parts)
        return
    for view in (memoryview(part) for part in parts):
        for start in range(0, len(view), most):
            yield view[start : start + most]
