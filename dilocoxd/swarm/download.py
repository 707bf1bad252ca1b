"""Large resources (files of a snapshot) from many donors at once: chunks of 4 MiB, each verified, kept over restarts.

Decides which donor gives which chunk: every donor takes the next one that is missing, so a fast donor gives more. At
the end, when nothing is left to begin, a donor that is done asks once more for a chunk that another is late with, so
that the slowest donor does not decide when the download ends. A chunk reaches the target only after its hash was
right; a donor of a wrong one is dropped and named. Chunks that the target holds already are recognised by their hash.
"""

import asyncio
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.fetch import FetchClient
from dilocoxd.swarm.pieces import Region
from dilocoxd.swarm.streams import Refused

CHUNK_BYTES: Final = 4 * 1024 * 1024
LANES_PER_DONOR: Final = 2
"""Requests to one donor at a time: one is being answered while the other is asked, hashed or written."""
DONORS_MAX: Final = 16
"""Donors used at once: bounds memory (a chunk for each lane)."""
DONOR_FAILURES_MAX: Final = 3
LATE_FACTOR: Final = 1.5
"""A chunk on its way for this many times what the asking donor needs for one is asked for once more."""
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


@dataclass(slots=True)
class _Donor:
    """What is known of one donor in this download."""

    peer: PeerId
    failures: int = 0
    last_failure: str = ""
    chunk_s: float | None = None
    """How long it took for its newest chunk."""


@dataclass(slots=True)
class _Running:
    """A chunk on its way."""

    since: float
    donors: list[PeerId] = field(default_factory=list)


class Downloader:
    """One run over some Downloads, whose chunks are numbered one after the other."""

    def __init__(self, client: FetchClient, *plans: Download) -> None:
        for plan in plans:
            plan.check()
        self._client = client
        self._chunks = [(plan, index) for plan in plans for index in range(len(plan.chunk_hashes))]
        self._todo: deque[int] = deque()
        self._running: dict[int, _Running] = {}
        self._left: set[int] = set()
        self._donors: list[_Donor] = []
        self._num_lanes = 0
        self._over = asyncio.Event()
        """Nothing is left, or nobody to ask."""
        self.bad_chunks: dict[PeerId, int] = {}
        """Donors that sent a chunk with a wrong hash."""
        self.chunks_from: dict[PeerId, int] = {}

    async def run(self, donors: list[PeerId]) -> None:
        """Return when the targets are complete. Raises PeerError with each donor's last failure if they cannot be."""
        self._todo.extend([number for number in range(len(self._chunks)) if not await self._is_there(number)])
        self._left = set(self._todo)
        self._donors = [_Donor(peer) for peer in donors[:DONORS_MAX]]
        async with asyncio.TaskGroup() as group:
            lanes = [
                group.create_task(self._lane(donor), name=f"download from {donor.peer}")
                for donor in self._donors
                for _ in range(LANES_PER_DONOR)
            ]
            self._num_lanes = len(lanes)
            if self._left and lanes:
                await self._over.wait()
            for lane in lanes:
                lane.cancel()  # whoever is still late with a chunk that came from another
        if self._left:
            reasons = "; ".join(f"{donor.peer}: {donor.last_failure}" for donor in self._donors) or "no donors"
            raise PeerError(
                f"{self._chunks[min(self._left)][0].resource}: {len(self._left)} of {len(self._chunks)} chunks missing:"
                f" {reasons}"
            )

    async def _is_there(self, number: int) -> bool:
        plan, index = self._chunks[number]
        try:
            return await plan.chunk(index).sha256() == plan.chunk_hashes[index]
        except StoreError:
            return False  # the target is shorter than that

    def _next(self, donor: _Donor) -> int | None:
        """The next chunk for this donor: one that nobody was asked for, else one that another is late with."""
        if self._todo:
            return self._todo.popleft()
        if donor.chunk_s is None:
            return None
        late = asyncio.get_running_loop().time() - LATE_FACTOR * donor.chunk_s
        found = [n for n, run in self._running.items() if run.since < late and run.donors[-1] != donor.peer]
        return min(found, key=lambda number: self._running[number].since, default=None)

    async def _lane(self, donor: _Donor) -> None:
        """Chunk after chunk from one donor, until nothing is left or the donor is hopeless."""
        scratch = os.memfd_create("chunk", os.MFD_CLOEXEC)
        try:
            while self._left and donor.failures < DONOR_FAILURES_MAX:
                number = self._next(donor)
                if number is None:
                    await asyncio.sleep(_IDLE_POLL_S)  # another donor may fail and give its chunk back
                else:
                    await self._take(donor, number, scratch)
        finally:
            os.close(scratch)
            self._num_lanes -= 1
            if not self._num_lanes:
                self._over.set()

    async def _take(self, donor: _Donor, number: int, scratch: int) -> None:
        started = asyncio.get_running_loop().time()
        run = self._running.setdefault(number, _Running(started))
        run.since = started
        run.donors.append(donor.peer)
        try:
            await self._fetch_chunk(donor.peer, number, scratch)
            donor.failures, donor.chunk_s = 0, asyncio.get_running_loop().time() - started
        except (PeerError, WireError) as error:
            donor.last_failure = str(error)
            is_hopeless = isinstance(error, Refused | WireError)
            donor.failures = DONOR_FAILURES_MAX if is_hopeless else donor.failures + 1
        finally:
            run.donors.remove(donor.peer)
            if not run.donors:
                self._running.pop(number, None)
                if number in self._left:
                    self._todo.appendleft(number)

    async def _fetch_chunk(self, donor: PeerId, number: int, scratch: int) -> None:
        plan, index = self._chunks[number]
        chunk = plan.chunk(index)
        copy = Region(scratch, 0, chunk.length)
        await self._client.fetch_region(donor, plan.resource, copy, offset=index * CHUNK_BYTES)
        if await copy.sha256() != plan.chunk_hashes[index]:
            self.bad_chunks[donor] = self.bad_chunks.get(donor, 0) + 1
            wrong = WireError("bad_hash", f"chunk {index} of {plan.resource} is wrong")
            self._client.on_bad(donor, wrong)
            raise wrong
        if number not in self._left:
            return  # another donor was faster
        await asyncio.to_thread(_copy, copy, chunk)
        if number in self._left:
            self._left.remove(number)
            if not self._left:
                self._over.set()
            self.chunks_from[donor] = self.chunks_from.get(donor, 0) + 1


def _copy(source: Region, target: Region) -> None:
    data = memoryview(os.pread(source.fd, source.length, source.offset))
    position = target.offset
    try:
        while data:
            written = os.pwrite(target.fd, data, position)
            data, position = data[written:], position + written
    except OSError as error:
        raise StoreError(f"cannot write a downloaded chunk: {error.strerror}") from error
