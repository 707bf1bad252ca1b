"""What other peers say of their snapshots, and a download on our disk: kept over restarts, apart from our snapshots.

What makes a snapshot trustworthy is not its donor: its digest must be the one that the next entry of the chain was
voted for. Who is asked for which chunk is decided by the recovery machine (machines/recovery/chunks.py).
"""

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.durable import make_directory, store_error, write_file
from dilocoxd.store.snapshots import (
    ANCHOR_NAME,
    CHUNK_BYTES,
    INDEX_BYTES_MAX,
    INDEX_NAME,
    SnapshotFile,
    SnapshotIndex,
    decode_index,
    download_directory,
    move_in,
)
from dilocoxd.swarm.streams.chunks import ChunkFetcher, Download
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.entry import Entry
from dilocoxd.wire.limits import SEGMENTS_MAX

LIST_BYTES_MAX: Final = 64 * 1024
ANSWER_S: Final = 10.0
"""How long a list or an index may take, besides its bytes at ANSWER_BYTES_PER_S: a donor that takes longer is left."""
ANSWER_BYTES_PER_S: Final = 64 * 1024
VALUE_BYTES: Final = 4
"""Of one value of the state, which is kept in float32."""
OTHER_FILES_PER_STATE: Final = 2
"""Momentum and memory are as large as the anchor, or smaller; twice that is refused."""
SLACK_BYTES: Final = 16 << 20
"""Names of tensors, and what is as large whatever the model."""
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC


async def _ask(client: FetchClient, peer: PeerId, resource: str, bytes_max: int) -> bytes:
    """A small resource in time. Raises PeerError, WireError."""
    patience_s = ANSWER_S + bytes_max / ANSWER_BYTES_PER_S
    try:
        async with asyncio.timeout(patience_s):
            return await client.fetch_bytes(peer, resource, bytes_max=bytes_max)
    except TimeoutError:
        raise PeerError(f"{peer} did not give {resource} within {patience_s:.0f} s") from None


def index_bytes_max(numel: int) -> int:
    """No index of a state of so many values is larger: 70 bytes for each chunk, 90 for each segment."""
    if not numel:
        return INDEX_BYTES_MAX
    state = VALUE_BYTES * numel * (1 + 2 * OTHER_FILES_PER_STATE) + 3 * SLACK_BYTES
    return min(INDEX_BYTES_MAX, 4096 + 70 * (3 + state // CHUNK_BYTES) + 90 * min(SEGMENTS_MAX, numel))


def check_sizes(index: SnapshotIndex, numel: int, source: str) -> None:
    """Raises WireError unless the files can be of a state of `numel` values; 0: that is not known."""
    if not numel:
        return
    state = VALUE_BYTES * numel
    for file in index.files:
        least, most = (state, state) if file.name == ANCHOR_NAME else (0, OTHER_FILES_PER_STATE * state)
        if not least <= file.size <= most + SLACK_BYTES:
            what = f"{source}: {file.name} of {file.size} bytes"
            raise WireError("out_of_range", f"{what} is of no state of {numel} values")


async def list_of(client: FetchClient, peer: PeerId) -> list[int]:
    """Rounds of the snapshots that a peer offers, newest first. Raises PeerError; WireError, counted."""
    data = await _ask(client, peer, "snapshots", LIST_BYTES_MAX)
    lines = data.decode("ascii", "replace").split()
    if not all(line.isdecimal() and len(line) <= 18 for line in lines):
        raise _counted(client, peer, WireError("malformed", "list of snapshots holds something else than rounds"))
    return sorted((int(line) for line in lines), reverse=True)


async def fetch_index(client: FetchClient, peer: PeerId, certified_by: Entry, numel: int = 0) -> SnapshotIndex:
    """The index of the snapshot of the state that this entry was voted on. Raises PeerError, or WireError,
    which is counted if it is about what came.

    Its sizes follow from the model (`numel` values): nobody makes us download something else.

    Which chain it belongs to is said by the entry: a start would not use a snapshot that the donor stamped wrongly.
    """
    resource = f"snapshot/{certified_by.round}/{INDEX_NAME}"
    data = await _ask(client, peer, resource, index_bytes_max(numel))
    try:
        index = await asyncio.to_thread(decode_index, data, f"{resource} of {peer}")
        _check_index(index, certified_by, resource)
        check_sizes(index, numel, f"{resource} of {peer}")
    except StoreError as error:
        raise _counted(client, peer, WireError("malformed", str(error))) from error
    except WireError as error:
        raise _counted(client, peer, error) from None
    return replace(index, chain_head=certified_by.parent.hex())


def _check_index(index: SnapshotIndex, certified_by: Entry, resource: str) -> None:
    if index.run_id != certified_by.run_id or index.round != certified_by.round:
        raise WireError("malformed", f"{resource} is of run {index.run_id!r:.80}, round {index.round}")
    if index.state_digest != certified_by.state_digest.hex():
        # Whoever gives it may be honest: of another branch, or asked by us for what a made-up entry would certify.
        raise WireError("other_state", f"{resource} is not the state that entry {certified_by.round} was voted on")


def _counted(client: FetchClient, peer: PeerId, error: WireError) -> WireError:
    """An answer that came whole and is not what it must be: nobody else counts it."""
    client.on_bad(peer, error)
    return error


class SnapshotDownload:
    """One snapshot on its way to `root`/<round>, in a directory beside it that survives restarts."""

    def __init__(self, client: FetchClient, index: SnapshotIndex, root: Path) -> None:
        self._client = client
        self._index = index
        self.directory = root / str(index.round)
        self.partial = download_directory(root, index.round)
        self._fds: list[int] = []
        self.chunks = ChunkFetcher(client)

    async def open(self) -> frozenset[int]:
        """The chunks that an earlier try has brought, or that our own snapshot of this round has. Raises StoreError."""
        try:
            await asyncio.to_thread(make_directory, self.partial)
            for file in self._index.files:
                self._fds.append(await asyncio.to_thread(os.open, self.partial / file.name, _OPEN_FLAGS, 0o644))
        except OSError as error:
            raise self._failed(error) from error
        plans = [_plan(self._index.round, *pair) for pair in zip(self._index.files, self._fds, strict=True)]
        self.chunks = ChunkFetcher(self._client, *plans)
        present = await self.chunks.present()
        return present | await self._taken_from_own(present)

    async def _taken_from_own(self, present: frozenset[int]) -> frozenset[int]:
        """It may be damaged, of a state with a wrong bit, or of a log that is lost: what is right in it we keep."""
        own: dict[str, int] = {}
        try:
            for file in self._index.files:
                with contextlib.suppress(OSError):  # we have none, or it cannot be read: then that is fetched
                    path = self.directory / file.name
                    own[_resource(self._index.round, file)] = await asyncio.to_thread(os.open, path, _READ_FLAGS)
            return await self.chunks.take(own, present)
        finally:
            for fd in own.values():
                os.close(fd)

    async def finish(self) -> None:
        """All chunks are there: make it a snapshot, durably, in its own place. Raises StoreError."""
        try:
            for fd in self._fds:
                await asyncio.to_thread(os.fsync, fd)
        except OSError as error:
            raise self._failed(error) from error
        self.close()
        await asyncio.to_thread(write_file, self.partial / INDEX_NAME, self._index.encode())

    async def publish(self) -> Path:
        """It has proved right: let it appear among our own; one of the same round goes. Raises StoreError."""
        await asyncio.to_thread(move_in, self.partial, self.directory)
        return self.directory

    def close(self) -> None:
        """What is there stays on disk."""
        fds, self._fds = self._fds, []
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _failed(self, error: OSError) -> StoreError:
        return store_error(f"downloading snapshot {self._index.round}", self.partial, error)


def _plan(round_index: int, file: SnapshotFile, fd: int) -> Download:
    hashes = tuple(bytes.fromhex(chunk) for chunk in file.chunks)
    return Download(_resource(round_index, file), Region(fd, 0, file.size, is_on_disk=True), hashes)


def _resource(round_index: int, file: SnapshotFile) -> str:
    return f"snapshot/{round_index}/{file.name}"
