"""What `dilocoxd data show` says of a store: documents, tokens, samples, how long documents are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from dilocoxd.config.tokens.files import volumes_of
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.store import HELD, TRAIN, ShardInfo, TokenStore

_BAR: Final = 40
_READ_BYTES: Final = 8 << 20


def describe(store: TokenStore, seq_len: int, num_volumes: int = 1) -> dict[str, object]:
    """Figures of the store; samples for sequences of `seq_len` tokens. Of several volumes each is named."""
    index = store.index
    parts = {
        part: {
            "documents": sum(shard.num_documents for shard in index.of_part(part)),
            "tokens": sum(shard.num_tokens for shard in index.of_part(part)),
            "samples": samples.num_samples(seq_len),
            "left_over": samples.num_left_over(seq_len),
            "shards": len(index.of_part(part)),
        }
        for part, samples in ((TRAIN, store.train), (HELD, store.held))
    }
    return {
        "sha256": index.sha256(),
        "tokenizer_sha256": index.tokenizer_sha256,
        "vocab_size": index.vocab_size,
        "dtype": index.dtype,
        "eos": index.eos,
        "loss": "answers only" if store.train.has_mask else "all tokens",
        "seq_len": seq_len,
        **parts,
        **({"volumes": volumes(store, seq_len, num_volumes)} if num_volumes > 1 else {}),
        "lengths": histogram(store),
    }


def volumes(store: TokenStore, seq_len: int, count: int) -> list[dict[str, object]]:
    """What is in each of `count` volumes, and whether it is here."""
    cut = zip(volumes_of(store.index, count), store.volumes(count), strict=True)
    return [
        {
            "first": shards[0].name if shards else "",
            "last": shards[-1].name if shards else "",
            "shards": len(shards),
            "tokens": part.num_tokens,
            "samples": part.num_samples(seq_len),
            "here": not any(store.lacks(shard) for shard in shards),
        }
        for shards, part in cut
    ]


def histogram(store: TokenStore) -> dict[str, int]:
    """Number of training documents by length in tokens, in powers of two: "256" counts lengths of 256 to 511.

    Of shards that are here.
    """
    counts = np.zeros(64, np.int64)
    for shard in store.index.of_part(TRAIN):
        if store.lacks(shard):
            continue
        lengths = np.diff(store.ends(shard), prepend=0)
        counts += np.bincount(np.log2(np.maximum(lengths, 1)).astype(np.int64), minlength=64)
    return {str(1 << power): int(count) for power, count in enumerate(counts) if count}


def check_hashes(store: TokenStore, shards: Sequence[ShardInfo] = ()) -> Iterator[int]:
    """Reads every shard, or these; yields bytes read since the last. Raises ConfigError for one that is damaged."""
    item = np.dtype(store.index.dtype).itemsize
    for shard in shards or store.index.shards:
        place, digest = store.place(shard), hashlib.sha256()
        left = shard.num_tokens * item
        with place.path.open("rb") as file:
            file.seek(place.first_token * item)
            while left > 0:
                block = file.read(min(left, _READ_BYTES))
                if not block:
                    break
                digest.update(block)
                left -= len(block)
                yield len(block)
        _demand(digest.hexdigest(), shard.sha256, place.path)
        ends_path = store.directory / f"{shard.name}.ends"
        _demand(hashlib.sha256(ends_path.read_bytes()).hexdigest(), shard.ends_sha256, ends_path)
        if shard.mask_sha256:
            mask_path = store.directory / f"{shard.name}.mask"
            _demand(hashlib.sha256(mask_path.read_bytes()).hexdigest(), shard.mask_sha256, mask_path)


def _demand(got: str, wanted: str, path: Path) -> None:
    if got != wanted:
        raise ConfigError(f"{path} is not what it was when it was packed; copy or pack it again")


def text_lines(found: dict[str, object]) -> list[str]:
    """The figures for a terminal."""
    lines = [f"{name:17}{found[name]}" for name in ("sha256", "tokenizer_sha256", "vocab_size", "dtype", "eos", "loss")]
    for part, title in ((TRAIN, "training"), (HELD, "held out")):
        row = found[part]
        assert isinstance(row, dict)
        lines.append(
            f"{title:17}{row['documents']:,} documents, {row['tokens']:,} tokens,"
            f" {row['samples']:,} samples of {found['seq_len']}, {row['left_over']:,} tokens left over,"
            f" {row['shards']} shards"
        )
    rows = found.get("volumes", [])
    assert isinstance(rows, list)
    for number, row in enumerate(rows):
        lines.append(
            f"{f'volume {number}':17}{row['first']} to {row['last']}, {row['tokens']:,} tokens,"
            f" {row['samples']:,} samples, {'here' if row['here'] else 'not here'}"
        )
    lengths = found["lengths"]
    assert isinstance(lengths, dict)
    most = max(lengths.values(), default=1)
    lines.append("tokens per document")
    lines += [f"{'>= ' + name:>15}  {count:>12,}  {'#' * (count * _BAR // most)}" for name, count in lengths.items()]
    return lines
