"""Fetches the run's prepared text from a peer, for a newcomer that cannot make it (protocol/09-catching-up.md).

Bounded by `paths.corpus_bytes_max`; a download that broke goes on where it was, also in the next process. What comes
is checked against the manifest's hashes: token ids here, the tokenizer by who can read it (trainer/data/fetched.py).
"""

import functools
import json
from pathlib import Path
from typing import Final

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.store.durable import write_file
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.store.prepared import FETCHED, TOKENIZER, TOKENS
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.swarm.discovery.fetching import AskedPeer, fetch, fetch_file

INDEX_BYTES_MAX: Final = 1 << 16
TOKENIZER_BYTES_MAX: Final = 64 << 20


def fetch_corpus(access: Access, manifest: Manifest, folder: Path, *, bytes_max: int) -> None:
    """Fill `folder` with the run's prepared text. Blocks; runs its own event loop.

    Raises ConfigError if no peer has it, or it is larger than `bytes_max` or not what the manifest names; JoinError,
    StoreError.
    """

    async def question(source: AskedPeer) -> None:
        await _download(source, manifest, folder, bytes_max)

    folder.mkdir(parents=True, exist_ok=True)
    fetch(access, manifest.run_id, "the run's text", f"give it with --data {manifest.data.corpus}=PATH", question)


async def _download(source: AskedPeer, manifest: Manifest, folder: Path, bytes_max: int) -> None:
    index = await source.client.fetch_bytes(source.peer, "corpus/index.json", bytes_max=INDEX_BYTES_MAX)
    total = num_bytes_of(index, manifest)
    if total > bytes_max:
        raise ConfigError(
            f"the run's text has {total} bytes of tokens, paths.corpus_bytes_max = {bytes_max}: raise it with --set, or"
            f" give the text with --data {manifest.data.corpus}=PATH"
        )
    tokenizer = await source.client.fetch_bytes(source.peer, "corpus/tokenizer.json", bytes_max=TOKENIZER_BYTES_MAX)
    is_right = functools.partial(_is_text, sha256=manifest.data.sha256)
    await fetch_file(source, "corpus/tokens.bin", folder / TOKENS, total, "text", is_right)
    write_file(folder / TOKENIZER, tokenizer)
    write_file(folder / FETCHED, index)


def num_bytes_of(index: bytes, manifest: Manifest) -> int:
    """Length of tokens.bin by a peer's index. Raises WireError."""
    try:
        tables = json.loads(index)
        num_tokens = int(tables["num_train_tokens"]) + int(tables["num_validation_tokens"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise WireError("malformed", "corpus/index.json is no index") from error
    if not 0 < num_tokens < 1 << 48:
        raise WireError("out_of_range", f"corpus/index.json names {num_tokens} tokens")
    return num_tokens * (2 if manifest.model.vocab_size <= 1 << 16 else 4)


def _is_text(path: Path, sha256: str) -> bool:
    return file_sha256(path).hex() == sha256
