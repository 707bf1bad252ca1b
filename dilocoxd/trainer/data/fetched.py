"""Text that came from a peer (swarm/discovery/corpus.py) becomes prepared text, when it is what the manifest names."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import write_file
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.store.prepared import FETCHED, INDEX, TOKENIZER, TOKENS
from dilocoxd.trainer.data.prepare import DataConfig, PreparedData, TokenizerConfig, unigram_entropy
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, token_dtype, tokenizer_digest

_KEPT: Final = re.compile(rb'[^ \t\r\n"]++|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Everything of a JSON text but the blanks between its values. Takes time in proportion to any bytes."""


def accept(folder: Path, data: DataConfig, tokenizer: TokenizerConfig) -> PreparedData:
    """Check what lies in `folder`, and move it to its place beside it. Raises ConfigError; then `folder` is removed.

    Only the token counts are taken from the peer's index: everything else is in the manifest or computed.
    """
    try:
        index = _checked(folder, data, tokenizer)
    except ConfigError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / FETCHED).unlink()
    write_file(folder / INDEX, json.dumps(index, indent=1).encode())
    target = folder.with_name(f"fetched-{data.sha256[:16]}-{tokenizer.sha256[:16]}")
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    return PreparedData(directory=target, **index)


def _checked(folder: Path, data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    tables = json.loads((folder / FETCHED).read_bytes())
    num_train, num_held = int(tables["num_train_tokens"]), int(tables["num_validation_tokens"])
    tokens = np.memmap(folder / TOKENS, dtype=token_dtype(tokenizer.vocab_size), mode="r")
    share = num_held / max(1, num_train + num_held)
    is_split = num_train > 0 < num_held and num_train + num_held == len(tokens)
    if not is_split or share > 10 * data.validation_fraction:
        raise ConfigError(f"a peer sent a text of {num_train} and {num_held} tokens, not the run's; join again")
    got = file_sha256(folder / TOKENS).hex()
    digest = _compact(folder / TOKENIZER)
    for field, wanted, found in (
        ("data.sha256", data.sha256, got),
        ("tokenizer.sha256", tokenizer.sha256, digest),
    ):
        if wanted != found:
            raise ConfigError(f"{field} of the run is {wanted}, a peer sent {found}: join again through another peer")
    # What is parsed is the run's own from here on.
    digest = tokenizer_digest(load_tokenizer(folder / TOKENIZER))
    if digest != tokenizer.sha256:
        raise ConfigError(
            f"tokenizer.sha256 of the run is {tokenizer.sha256}, this library reads the same file as {digest};"
            " install the version of `tokenizers` that the run uses"
        )
    if int(tokens.max()) >= tokenizer.vocab_size:
        raise ConfigError(f"a peer sent token {int(tokens.max())}, the model knows {tokenizer.vocab_size}: join again")
    return {
        "source": "a peer",
        "data_sha256": got,
        "tokenizer_sha256": digest,
        "vocab_size": tokenizer.vocab_size,
        "num_train_tokens": num_train,
        "num_validation_tokens": num_held,
        "unigram_entropy": unigram_entropy(np.asarray(tokens[num_train:])),
    }


def _compact(path: Path) -> str:
    """Take out the blanks between the values of a JSON file, unparsed; sha256, hex, of what is left.

    Of a tokenizer as its library writes it, with blanks or without, this is `tokenizer_digest`.
    """
    digest = hashlib.sha256()
    data = path.read_bytes()
    with path.open("wb") as file:
        for match in _KEPT.finditer(data):
            digest.update(match[0])
            file.write(match[0])
    return digest.hexdigest()
