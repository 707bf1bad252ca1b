"""Fetches the files of a given tokenizer from a peer, chat template included (protocol/09-catching-up.md)."""

import hashlib
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.origin import TOKENIZER_FILE_BYTES_MAX
from dilocoxd.errors import WireError
from dilocoxd.store.durable import write_file
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.swarm.discovery.fetching import AskedPeer, fetch


def fetch_tokenizer(access: Access, manifest: Manifest, folder: Path) -> None:
    """Fill `folder` with the files that the manifest names. Blocks; runs its own event loop.

    Raises ConfigError if no peer has them or they are not what the manifest names; JoinError, StoreError.
    """

    async def question(source: AskedPeer) -> None:
        for name, sha256 in manifest.tokenizer.files.items():
            data = await source.client.fetch_bytes(source.peer, f"tokenizer/{name}", bytes_max=TOKENIZER_FILE_BYTES_MAX)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise WireError("bad_hash", f"{source.peer} sent another {name} than the run's")
            write_file(folder / name, data)

    fetch(access, manifest.run_id, "the run's tokenizer", "give its folder with --tokenizer DIR", question)
