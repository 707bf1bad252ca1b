"""Downloads a snapshot from all peers that have it, chunk by chunk, resumable, and lets it appear when it is whole.

What makes it trustworthy is not its donor: its digest must be the one that the next entry of the chain was voted for.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.snapshots import (
    INDEX_BYTES_MAX,
    INDEX_NAME,
    SnapshotFile,
    SnapshotIndex,
    decode_index,
    publish,
)
from dilocoxd.swarm.download import Download, Downloader
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
    """The index of the snapshot of the state that this entry was voted on. Raises PeerError, WireError, StoreError."""
    resource = f"snapshot/{certified_by.round}/{INDEX_NAME}"
    data = await client.fetch_bytes(peer, resource, bytes_max=INDEX_BYTES_MAX)
    index = await asyncio.to_thread(decode_index, data, f"{resource} of {peer}")
    if index.run_id != certified_by.run_id or index.round != certified_by.round:
        raise WireError("malformed", f"{resource} is of run {index.run_id}, round {index.round}")
    if index.state_digest != certified_by.state_digest.hex():
        raise WireError("bad_hash", f"{resource} is not the state that entry {certified_by.round} was voted on")
    return index


async def download_snapshot(client: FetchClient, donors: list[PeerId], index: SnapshotIndex, root: Path) -> Path:
    """The directory of the complete snapshot. What an earlier try brought is kept. Raises PeerError, StoreError."""
    directory = root / str(index.round)
    partial = root / f".{index.round}.download"
    await asyncio.to_thread(partial.mkdir, parents=True, exist_ok=True)
    fds = []
    try:
        for file in index.files:
            fds.append(await asyncio.to_thread(os.open, partial / file.name, _OPEN_FLAGS, 0o644))
        plans = [_plan(index.round, file, fd) for file, fd in zip(index.files, fds, strict=True)]
        await Downloader(client, *plans).run(donors)
        for fd in fds:
            await asyncio.to_thread(os.fsync, fd)
    except OSError as error:
        raise StoreError(f"downloading snapshot {index.round}: {error.strerror}; check the disk") from error
    finally:
        for fd in fds:
            os.close(fd)
    await asyncio.to_thread(publish, partial, directory, index)
    return directory


def _plan(round_index: int, file: SnapshotFile, fd: int) -> Download:
    hashes = tuple(bytes.fromhex(chunk) for chunk in file.chunks)
    return Download(f"snapshot/{round_index}/{file.name}", Region(fd, 0, file.size, is_on_disk=True), hashes)


async def newest_certified(
    client: FetchClient, donors: list[PeerId], certified: dict[int, Entry]
) -> tuple[SnapshotIndex, list[PeerId]] | None:
    """The newest snapshot that an entry of the chain certifies, and who has it. None if nobody has one."""
    holders: dict[int, list[PeerId]] = {}
    for donor in donors:
        try:
            for number in await list_of(client, donor):
                holders.setdefault(number, []).append(donor)
        except (PeerError, WireError):
            continue
    for number in sorted(holders.keys() & certified.keys(), reverse=True):
        found = await _indexes(client, holders[number], certified[number])
        if found:
            # A fork that lost may lie under the same number at others: its chunks would be wrong.
            index = found[0][1]
            return index, [donor for donor, other in found if other.files == index.files]
    return None


async def _indexes(
    client: FetchClient, donors: list[PeerId], certified_by: Entry
) -> list[tuple[PeerId, SnapshotIndex]]:
    found = []
    for donor in donors:
        try:
            found.append((donor, await fetch_index(client, donor, certified_by)))
        except (PeerError, WireError, StoreError):
            continue
    return found
