"""Chunks of large resources (files of a snapshot): fetched into scratch memory, verified, then written in their place.

Moves bytes only; which source gives which chunk is decided by machines/recovery/chunks.py. A chunk reaches the target
only after its hash was right. Chunks that the target holds already are recognised by their hash, so a download goes on
after a restart where it was.
"""

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.durable import write_all
from dilocoxd.store.snapshots import CHUNK_BYTES
from dilocoxd.swarm.streams.fetch import FetchClient, OnBytes
from dilocoxd.swarm.streams.pieces import Region, in_thread


@dataclass(frozen=True, slots=True)
class Download:
    """What a download must turn out to be."""

    resource: str
    target: Region
    chunk_hashes: tuple[bytes, ...]
    """sha256 of each CHUNK_BYTES of the resource (the last one shorter)."""

    def chunk(self, index: int) -> Region:
        """Where chunk `index` goes."""
        start = index * CHUNK_BYTES
        length = min(CHUNK_BYTES, self.target.length - start)
        return Region(self.target.fd, self.target.offset + start, length, self.target.is_on_disk)

    def check(self) -> None:
        """Raises WireError if hashes and length do not belong together."""
        wanted = -(-self.target.length // CHUNK_BYTES)
        if len(self.chunk_hashes) != wanted:
            raise WireError("malformed", f"{self.resource}: {len(self.chunk_hashes)} hashes for {wanted} chunks")


class ChunkFetcher:
    """The chunks of some Downloads, numbered one after the other."""

    def __init__(self, client: FetchClient, *plans: Download) -> None:
        for plan in plans:
            plan.check()
        self._client = client
        self._chunks = [(plan, index) for plan in plans for index in range(len(plan.chunk_hashes))]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each chunk."""
        return tuple(plan.chunk(index).length for plan, index in self._chunks)

    async def present(self) -> frozenset[int]:
        """Chunks that the targets hold already."""
        return frozenset([number for number in range(len(self._chunks)) if await self._is_there(number)])

    async def _is_there(self, number: int) -> bool:
        plan, index = self._chunks[number]
        return await _has(plan.chunk(index), plan.chunk_hashes[index])

    async def take(self, files: Mapping[str, int], present: Set[int]) -> frozenset[int]:
        """Chunks besides `present` that a file of ours has in the same place, copied into theirs. `files`: resource ->
        descriptor. Raises StoreError when they cannot be written."""
        taken = set[int]()
        for number, (plan, index) in enumerate(self._chunks):
            chunk, fd = plan.chunk(index), files.get(plan.resource)
            if number in present or fd is None:
                continue
            own = Region(fd, index * CHUNK_BYTES, chunk.length, is_on_disk=True)
            if await _has(own, plan.chunk_hashes[index]):
                await in_thread((fd, chunk.fd), _copy, chunk, own.offset)
                taken.add(number)
        return frozenset(taken)

    async def fetch(
        self,
        donor: PeerId,
        number: int,
        is_wanted: Callable[[], bool] = lambda: True,
        on_bytes: OnBytes = lambda num_bytes: None,
    ) -> None:
        """One chunk into its place, unless nobody wants it any more. Raises PeerError, WireError (`bad_hash`: the donor
        has been reported), StoreError."""
        plan, index = self._chunks[number]
        chunk = plan.chunk(index)
        scratch = os.memfd_create("chunk", os.MFD_CLOEXEC)
        try:
            copy = Region(scratch, 0, chunk.length)
            await self._client.fetch_region(donor, plan.resource, copy, offset=index * CHUNK_BYTES, on_bytes=on_bytes)
            if await copy.sha256() != plan.chunk_hashes[index]:
                wrong = WireError("bad_hash", f"chunk {index} of {plan.resource} is wrong")
                self._client.on_bad(donor, wrong)
                raise wrong
            if is_wanted():
                await in_thread((scratch, chunk.fd), _copy, chunk)
        finally:
            os.close(scratch)


async def _has(region: Region, sha256: bytes) -> bool:
    try:
        return await region.sha256() == sha256
    except (OSError, StoreError):
        return False  # the file is shorter than that, or cannot be read there


def _copy(source: int, target: int, chunk: Region, offset: int = 0) -> None:
    try:
        write_all(target, memoryview(os.pread(source, chunk.length, offset)), chunk.offset)
    except OSError as error:
        raise StoreError(f"cannot write a downloaded chunk: {error.strerror}") from error
