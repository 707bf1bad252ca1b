"""Fetches snapshot 0 of a run that starts from pretrained weights, for a newcomer that does not have the files.

What it must be is said by the manifest, which is verified: state digest of the index, sha256 of each chunk.
"""

import asyncio
import functools
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import StoreError, WireError
from dilocoxd.store.first_state import StateHashes
from dilocoxd.store.snapshots import INDEX_BYTES_MAX, INDEX_NAME, SnapshotFile, decode_index, hash_chunks
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.swarm.discovery.fetching import AskedPeer, fetch, fetch_file


def fetch_first_state(access: Access, manifest: Manifest, folder: Path) -> StateHashes:
    """Fill `folder` with the files of snapshot 0; what its index says. Blocks; runs its own event loop.

    Raises ConfigError if no peer has it or what comes is not what the manifest names; JoinError, StoreError.
    """

    async def question(source: AskedPeer) -> StateHashes:
        return await _download(source, manifest, folder)

    what, instead = "the model that the run started from", "give its files with --init DIR"
    return fetch(access, manifest.run_id, what, instead, question)


async def _download(source: AskedPeer, manifest: Manifest, folder: Path) -> StateHashes:
    data = await source.client.fetch_bytes(source.peer, f"snapshot/0/{INDEX_NAME}", bytes_max=INDEX_BYTES_MAX)
    try:
        index = await asyncio.to_thread(decode_index, data, f"snapshot 0 of {source.peer}")
    except StoreError as error:
        raise WireError("malformed", str(error)) from error
    if (index.run_id, index.round, index.state_digest) != (manifest.run_id, 0, manifest.init.state_digest):
        raise WireError("bad_hash", f"snapshot 0 of {source.peer} is not the state that the manifest names")
    for file in index.files:
        is_right = functools.partial(_is_file, named=file)
        resource = f"snapshot/0/{file.name}"
        await fetch_file(source, resource, folder / file.name, file.size, file.name, is_right)
    return StateHashes(index.anchor_sha256, index.segments)


def _is_file(path: Path, named: SnapshotFile) -> bool:
    return hash_chunks(path) == named
