"""`dilocoxd data adopt`: Megatron .bin/.idx and nanoGPT .bin become a token store where they are, not copied.

Formats: Megatron's indexed data set (magic MMIDIDX, version 1) and raw token ids (nanoGPT: uint16 without a header).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.store.durable import fsync_directory, hidden_folder, write_file
from dilocoxd.trainer.tokens.folders import require_file, require_free
from dilocoxd.trainer.tokens.store import HELD, INDEX, PATHS, TOKENIZER, TRAIN, ShardInfo, StoreIndex, open_store
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, num_ids, tokenizer_digest

_MEGATRON: Final = struct.Struct("<9sQBQQ")
_MAGIC: Final = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES: Final = {4: "int32", 8: "uint16"}
_BLOCK_TOKENS: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """What the user chose."""

    tokenizer: Path | None = None
    """tokenizer.json that made the tokens, or a folder with one."""
    vocab_size: int = 0
    """Needed without `tokenizer`."""
    eos: int | None = None
    dtype: str = "uint16"
    """Of raw files."""
    held: tuple[Path, ...] = ()
    """Files that are only for validation."""
    held_fraction: float = 0.01
    """Without `held`: of each file the documents at its end that make up so much of it."""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    dtype: str
    tokens: Any
    """Memory map of all ids."""
    ends: npt.NDArray[np.int64]


def adopt(inputs: Sequence[Path], out: Path, options: AdoptOptions, progress: Callable[[int, int], None]) -> str:
    """Make a store of existing token files at `out`; sha256 of the store, hex. Reads each file once.

    Raises ConfigError for files that are damaged, of different types or not of the tokenizer.
    """
    require_free(out)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer is not None else None
    vocab_size = num_ids(tokenizer) if tokenizer is not None else options.vocab_size
    if vocab_size <= 0:
        raise ConfigError("--vocab-size is needed without --tokenizer; say how many token ids there are")
    if options.eos is not None and not 0 <= options.eos < vocab_size:
        raise ConfigError(f"--eos-id {options.eos}: the {vocab_size} token ids are 0 to {vocab_size - 1}; name one")
    parts = [*((TRAIN, path) for path in inputs), *((HELD, path) for path in options.held)]
    files = [(part, _open(path, options)) for part, path in parts]
    if len({file.dtype for _, file in files}) > 1:
        raise ConfigError("the files have different types of token ids; adopt them as stores of their own")
    digest = tokenizer_digest(tokenizer) if tokenizer is not None else ""
    index = StoreIndex(files[0][1].dtype, vocab_size, options.eos, digest, ())
    with _made_whole(out) as folder:
        if tokenizer is not None:
            write_file(folder / TOKENIZER, tokenizer.to_str().encode())
        index = _write(folder, index, list(_spans(files, options)), progress)
        open_store(folder)
    return index.sha256()


@contextmanager
def _made_whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes `out` if all goes well, and else leaves nothing; what a killed process left
    there is cleared away. Raises ConfigError."""
    place = Path(os.path.realpath(out))
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(hidden_folder(place, ".adopting"))
        except OSError as error:
            raise ConfigError(f"{out} cannot be made ({error.strerror}); give another OUT") from error
        yield folder
        try:
            folder.rename(place)
        except OSError as error:
            raise ConfigError(f"{out} cannot be made ({error.strerror}); give an empty folder, or none") from error
        fsync_directory(place.parent)


def _write(
    folder: Path, index: StoreIndex, spans: list[tuple[str, _File, int, int]], progress: Callable[[int, int], None]
) -> StoreIndex:
    """The index with the shards that `spans` give, written with all that belongs to it."""
    total, done = sum(stop - start for _, _, start, stop in spans), 0
    shards: list[ShardInfo] = []
    paths: dict[str, dict[str, object]] = {}
    for part, file, start, stop in spans:
        name = f"{part}-{sum(shard.name.startswith(part) for shard in shards):05d}"
        shards.append(_shard(folder, name, file, (start, stop), index.vocab_size))
        paths[name] = {"path": str(file.path.resolve()), "first_token": start}
        done += stop - start
        progress(done, total)
    ordered = sorted(shards, key=lambda shard: (shard.name.startswith(HELD), shard.name))
    index = replace(index, shards=tuple(ordered))
    write_file(folder / PATHS, json.dumps(paths, indent=1).encode())
    write_file(folder / INDEX, index.canonical_bytes())
    return index


def _open(path: Path, options: AdoptOptions) -> _File:
    if path.suffix == ".idx":
        path = path.with_suffix(".bin")
    index = path.with_suffix(".idx")
    require_file(path)
    require_file(index)
    try:
        if index.exists():
            dtype, ends = _megatron_index(index)
        else:
            dtype, ends = options.dtype, None
        tokens = np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise ConfigError(
            f"{path}: cannot be adopted ({reason_of(error)}); give .bin files of Megatron or nanoGPT"
        ) from error
    if ends is None:
        ends = _ends_by_token(tokens, options.eos)
    named = int(ends[-1]) if len(ends) else 0
    if named != len(tokens) or not named:
        raise ConfigError(f"{path}: {index.name} names {named} tokens, the file has {len(tokens)}; copy both again")
    return _File(path, dtype, tokens, ends)


def _megatron_index(path: Path) -> tuple[str, npt.NDArray[np.int64]]:
    """(type of the ids, document ends in tokens). Raises ValueError, struct.error."""
    data = path.read_bytes()
    magic, version, code, num_sequences, num_documents = _MEGATRON.unpack_from(data)
    if magic != _MAGIC or version != 1 or code not in _MEGATRON_DTYPES:
        raise ValueError(f"{path.name} is no index of version 1 with token ids of int32 or uint16")
    lengths = np.frombuffer(data, "<i4", num_sequences, _MEGATRON.size).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", num_sequences, _MEGATRON.size + 4 * num_sequences)
    documents = np.frombuffer(data, "<i8", num_documents, _MEGATRON.size + 12 * num_sequences)
    sequence_ends = np.cumsum(lengths)
    dtype = _MEGATRON_DTYPES[code]
    if not np.array_equal(pointers, (sequence_ends - lengths) * np.dtype(dtype).itemsize):
        raise ValueError(f"{path.name} names sequences that do not follow each other")
    if lengths.min(initial=0) < 0 or documents.min(initial=0) < 0 or documents.max(initial=0) > num_sequences:
        raise ValueError(f"{path.name} names sequences that are not there")
    ends = sequence_ends[documents[documents > 0] - 1]
    if (np.diff(ends) < 0).any():
        raise ValueError(f"{path.name} names documents that do not follow each other")
    return dtype, ends[np.diff(ends, prepend=0) > 0]


def _ends_by_token(tokens: Any, eos: int | None) -> npt.NDArray[np.int64]:
    """Documents end behind each end token; without one all is one document."""
    found: list[npt.NDArray[np.int64]] = []
    if eos is not None:
        for start in range(0, len(tokens), _BLOCK_TOKENS):
            found.append(np.flatnonzero(tokens[start : start + _BLOCK_TOKENS] == eos) + start + 1)
    ends = np.concatenate([np.zeros(0, np.int64), *found])
    return ends if len(ends) and ends[-1] == len(tokens) else np.append(ends, len(tokens))


def _spans(files: list[tuple[str, _File]], options: AdoptOptions) -> Iterator[tuple[str, _File, int, int]]:
    for part, file in files:
        num = len(file.tokens)
        split = num
        if part == TRAIN and not options.held and options.held_fraction and len(file.ends) > 1:
            split = int(file.ends[np.searchsorted(file.ends, num * (1.0 - options.held_fraction))])
            split = split if split < num else int(file.ends[-2])
        yield part, file, 0, split
        if split < num:
            yield HELD, file, split, num


def _shard(out: Path, name: str, file: _File, span: tuple[int, int], vocab_size: int) -> ShardInfo:
    start, stop = span
    digest = hashlib.sha256()
    for position in range(start, stop, _BLOCK_TOKENS):
        block = np.asarray(file.tokens[position : min(stop, position + _BLOCK_TOKENS)])
        if len(block) and not 0 <= int(block.min()) <= int(block.max()) < vocab_size:
            raise ConfigError(
                f"{file.path}: token {int(block.max())} is not below the vocabulary's size {vocab_size};"
                " give the tokenizer that made the file, or its --dtype"
            )
        digest.update(block.tobytes())
    ends = file.ends[(file.ends > start) & (file.ends <= stop)] - start
    data = ends.astype("<i8").tobytes()
    write_file(out / f"{name}.ends", data)
    return ShardInfo(name, stop - start, len(ends), digest.hexdigest(), hashlib.sha256(data).hexdigest())
