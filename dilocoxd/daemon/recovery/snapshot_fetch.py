"""What other peers say of their snapshots, and a download on our disk: kept over restarts, apart from our snapshots.

What makes a snapshot trustworthy is not its donor: its digest must be the one that the next entry of the chain was
voted for. Who is asked for which chunk is decided by the recovery machine (rounds/chunks.py).
"""

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.durable import make_directory, write_file
from dilocoxd.store.snapshots import (
    INDEX_BYTES_MAX,
    INDEX_NAME,
    SnapshotFile,
    SnapshotIndex,
    decode_index,
    download_directory,
    move_in,
)
from dilocoxd.swarm.download import ChunkFetcher, Download
from dilocoxd.swarm.fetch import FetchClient
from dilocoxd.swarm.pieces import Region
from dilocoxd.wire.entry import Entry

LIST_BYTES_MAX: Final = 64 * 1024
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


async def list_of(client: FetchClient, peer: PeerId) -> list[int]:
    """Rounds of the snapshots that a peer offers, newest first. Raises PeerError, WireError."""
    data = await client.fetch_bytes(peer, "snapshots", bytes_max=LIST_BYTES_MAX)
    lines = data.decode("ascii", "replace").split()
    if not all(line.isdecimal() and len(line) <= 18 for line in lines):
        raise WireError("malformed", "list of snapshots holds something else than rounds")
    return sorted((int(line) for line in lines), reverse=True)


async def fetch_index(client: FetchClient, peer: PeerId, certified_by: Entry) -> SnapshotIndex:
    """The index of the snapshot of the state that this entry was voted on. Raises PeerError, WireError, StoreError.

    Which chain it belongs to is said by the entry: a start would not use a snapshot that the donor stamped wrongly.
    """
    resource = f"snapshot/{certified_by.round}/{INDEX_NAME}"
    data = await client.fetch_bytes(peer, resource, bytes_max=INDEX_BYTES_MAX)
    index = await asyncio.to_thread(decode_index, data, f"{resource} of {peer}")
    if index.run_id != certified_by.run_id or index.round != certified_by.round:
        raise WireError("malformed", f"{resource} is of run {index.run_id}, round {index.round}")
    if index.state_digest != certified_by.state_digest.hex():
        raise WireError("bad_hash", f"{resource} is not the state that entry {certified_by.round} was voted on")
    return replace(index, chain_head=certified_by.parent.hex())


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
        """The chunks that an earlier try has brought. Raises StoreError."""
        try:
            await asyncio.to_thread(make_directory, self.partial)
            for file in self._index.files:
                self._fds.append(await asyncio.to_thread(os.open, self.partial / file.name, _OPEN_FLAGS, 0o644))
        except OSError as error:
            raise self._failed(error) from error
        plans = [_plan(self._index.round, *pair) for pair in zip(self._index.files, self._fds, strict=True)]
        self.chunks = ChunkFetcher(self._client, *plans)
        return await self.chunks.present()

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
        return StoreError(f"downloading snapshot {self._index.round}: {error.strerror}; check the disk")


def _plan(round_index: int, file: SnapshotFile, fd: int) -> Download:
    hashes = tuple(bytes.fromhex(chunk) for chunk in file.chunks)
    return Download(f"snapshot/{round_index}/{file.name}", Region(fd, 0, file.size, is_on_disk=True), hashes)
