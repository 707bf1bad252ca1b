"""What bytes come from and go to: a libp2p stream and who opens one, or a data connection."""

import asyncio
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from dilocoxd.ids import PeerId


class ByteReader(Protocol):
    """asyncio.StreamReader, or the channel of a data connection."""

    async def read(self, n: int) -> bytes: ...


class ByteWriter(Protocol):
    """asyncio.StreamWriter, or the channel of a data connection."""

    def write(self, data: bytes | memoryview) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class IntoReader(Protocol):
    """A reader that writes where it is told: the channel of a data connection."""

    async def read_into(self, target: memoryview) -> int: ...


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
    for view in map(memoryview, parts):
        for start in range(0, len(view), most):
            yield view[start : start + most]
