"""Fetches the anchor of snapshot 0, which pretrained weights became, for a newcomer that does not have them.

The peer's index says how long it is and the sha256 of each chunk. Whether it is the run's is for the caller to compute:
all else of state 0 follows from the plan, and the manifest names its digest.
"""

import asyncio
import functools
from pathlib import Path
from typing import Final

from dilocoxd.config.footprint.counts import model_parameters
from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import StoreError, WireError
from dilocoxd.store.snapshots import (
    FILE_BYTES_MAX,
    INDEX_BYTES_MAX,
    INDEX_NAME,
    SnapshotFile,
    decode_index,
    hash_chunks,
)
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.swarm.discovery.fetching import AskedPeer, fetch, fetch_file

_BYTES_OF_A_PARAMETER: Final = 32
"""Eight times what an anchor has: the manifest tells the size of a model near enough, not to the byte."""
_HEADER_BYTES: Final = 64 << 20


def fetch_first_state(access: Access, manifest: Manifest, folder: Path) -> None:
    """Put the anchor of snapshot 0, as one peer has it, into `folder`. Blocks; runs its own event loop.

    Raises ConfigError if no peer has it or what comes cannot be what the manifest names; JoinError, StoreError.
    """

    async def question(source: AskedPeer) -> None:
        await _download(source, manifest, folder)

    what, instead = "the model that the run started from", "give its files with --init DIR"
    fetch(access, manifest.run_id, what, instead, question)


async def _download(source: AskedPeer, manifest: Manifest, folder: Path) -> None:
    data = await source.client.fetch_bytes(source.peer, f"snapshot/0/{INDEX_NAME}", bytes_max=INDEX_BYTES_MAX)
    try:
        index = await asyncio.to_thread(decode_index, data, f"snapshot 0 of {source.peer}")
    except StoreError as error:
        raise WireError("malformed", str(error)) from error
    if (index.run_id, index.round, index.state_digest) != (manifest.run_id, 0, manifest.init.state_digest):
        raise WireError("bad_hash", f"snapshot 0 of {source.peer} is not the state that the manifest names")
    anchor, most = index.files[0], bytes_max(manifest)
    if anchor.size > most:
        raise WireError("too_large", f"{anchor.name} of {source.peer} has {anchor.size} bytes, at most {most}")
    is_right = functools.partial(_is_file, named=anchor)
    await fetch_file(source, f"snapshot/0/{anchor.name}", folder / anchor.name, anchor.size, anchor.name, is_right)


def bytes_max(manifest: Manifest) -> int:
    """Longer than any anchor of this run, so that a liar does not fill the disk."""
    model = manifest.model
    if model.kind == "python":
        return FILE_BYTES_MAX  # what its sizes mean is up to the package that it comes from
    return _BYTES_OF_A_PARAMETER * model_parameters(manifest) + _HEADER_BYTES


def _is_file(path: Path, named: SnapshotFile) -> bool:
    return hash_chunks(path) == named
