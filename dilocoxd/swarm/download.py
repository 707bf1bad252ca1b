"""One large resource from many donors at once: chunks of 4 MiB, each verified by hash, kept over restarts.

Decides which donor gives which chunk: every donor takes the next one that is missing, so a fast donor gives more, and
none is asked for more than one chunk at a time. Chunks that the target holds already are recognised by their hash.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.fetch import FetchClient
from dilocoxd.swarm.pieces import Region
from dilocoxd.swarm.streams import Refused

CHUNK_BYTES: Final = 4 * 1024 * 1024
DONOR_FAILURES_MAX: Final = 3
_IDLE_POLL_S: Final = 0.05


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


class Downloader:
    """One run over one Download."""

    def __init__(self, client: FetchClient, plan: Download, on_chunk: Callable[[int], None] | None = None) -> None:
        plan.check()
        self._client = client
        self._plan = plan
        self._on_chunk = on_chunk
        self._todo: deque[int] = deque()
        self._left = 0
        self._failures: dict[PeerId, str] = {}
        self.bad_chunks: dict[PeerId, int] = {}
        """Donors that sent a chunk with a wrong hash."""
        self.chunks_from: dict[PeerId, int] = {}

    async def run(self, donors: list[PeerId]) -> None:
        """Return when the target is complete. Raises PeerError with each donor's last failure if it cannot be."""
        for index, digest in enumerate(self._plan.chunk_hashes):
            if await self._is_there(index, digest):
                self._tell(index)
            else:
                self._todo.append(index)
        self._left = len(self._todo)
        async with asyncio.TaskGroup() as group:
            for donor in donors:
                group.create_task(self._take_from(donor), name=f"download from {donor}")
        if self._left:
            reasons = "; ".join(f"{donor}: {reason}" for donor, reason in self._failures.items()) or "no donors"
            raise PeerError(
                f"{self._plan.resource}: {self._left} of {len(self._plan.chunk_hashes)} chunks missing: {reasons}"
            )

    def _tell(self, index: int) -> None:
        if self._on_chunk is not None:
            self._on_chunk(index)

    async def _is_there(self, index: int, digest: bytes) -> bool:
        try:
            return await self._plan.chunk(index).sha256() == digest
        except StoreError:
            return False  # the target is shorter than that

    async def _take_from(self, donor: PeerId) -> None:
        """Chunk after chunk from one donor, until nothing is left or the donor is hopeless."""
        num_failures = 0
        while self._left and num_failures < DONOR_FAILURES_MAX:
            if not self._todo:
                await asyncio.sleep(_IDLE_POLL_S)  # another donor may fail and give its chunk back
                continue
            index = self._todo.popleft()
            is_done = False
            try:
                await self._fetch_chunk(donor, index)
                is_done = True
            except (PeerError, WireError) as error:
                self._failures[donor] = str(error)
                is_hopeless = isinstance(error, Refused | WireError)
                num_failures = DONOR_FAILURES_MAX if is_hopeless else num_failures + 1
            finally:
                if not is_done:
                    self._todo.appendleft(index)
            if is_done:
                self._left -= 1
                self.chunks_from[donor] = self.chunks_from.get(donor, 0) + 1
                self._tell(index)

    async def _fetch_chunk(self, donor: PeerId, index: int) -> None:
        chunk = self._plan.chunk(index)
        await self._client.fetch_region(donor, self._plan.resource, chunk, offset=index * CHUNK_BYTES)
        if await chunk.sha256() != self._plan.chunk_hashes[index]:
            self.bad_chunks[donor] = self.bad_chunks.get(donor, 0) + 1
            raise WireError("bad_hash", f"chunk {index} of {self._plan.resource} is wrong")
