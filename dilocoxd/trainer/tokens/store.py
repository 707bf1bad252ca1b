"""The token store: a folder with index.json and shards of token ids, larger than memory, never changed once made.

``index.json`` names every shard with its number of tokens and documents and its sha256, so the hash of the index names
all of the content. A shard is ``<name>.bin`` (token ids, little endian, each document followed by the end token if the
store has one) and ``<name>.ends`` (int64: where each document ends, in tokens). Shards whose name begins with "held-"
are held out. Of conversations there is ``<name>.mask`` (a byte for each token: 1 where it is part of an answer, whose
prediction is trained, else 0). ``paths.json`` is there only if the shards lie elsewhere (`dilocoxd data adopt`); it is
not hashed.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dilocoxd.config.token_index import HELD, INDEX, TOKENS_MAX, TRAIN, ShardInfo, StoreIndex, read_index
from dilocoxd.errors import ConfigError

PATHS: Final = "paths.json"
TOKENIZER: Final = "tokenizer.json"
_DTYPES: Final[dict[str, type[np.integer[Any]]]] = {"uint16": np.uint16, "uint32": np.uint32, "int32": np.int32}
_TOUCHED_BYTES_MAX: Final = 32 << 20
"""Mapped pages are given back after so many bytes: a random order would make the whole store resident."""
_FAULT_BYTES: Final = 64 << 10
"""What the kernel maps around a page that is touched (fault-around), at each end of a window."""

_MAPS_MAX: Final = 4096
"""Shards of a part that are mapped at a time."""

Ids = npt.NDArray[np.int64]

__all__ = [
    "HELD", "INDEX", "PATHS", "TOKENIZER", "TRAIN", "Part", "ShardInfo", "ShardPlace", "StoreIndex", "TokenStore",
    "is_store", "open_store",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where the token ids of a shard are."""

    path: Path
    first_token: int = 0
    """Tokens of the file before the shard."""


class _Mapped:
    """The token ids of one shard, mapped; what was touched is given back now and then."""

    def __init__(self, place: ShardPlace, info: ShardInfo, dtype: type[np.integer[Any]]) -> None:
        self._item = np.dtype(dtype).itemsize
        self._dtype = dtype
        start = place.first_token * self._item
        self._skip = start % mmap.ALLOCATIONGRANULARITY
        length = info.num_tokens * self._item + self._skip
        with place.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ, offset=start - self._skip)
        self._map.madvise(mmap.MADV_RANDOM)
        self._touched = 0

    def read(self, start: int, count: int) -> Ids:
        """`count` ids from `start` on, a copy."""
        found = np.frombuffer(self._map, self._dtype, count, self._skip + start * self._item).astype(np.int64)
        self._touched += count * self._item + 2 * _FAULT_BYTES
        if self._touched > _TOUCHED_BYTES_MAX:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return found


class Part:
    """The training or the held-out part of a store, as samples of a given length."""

    def __init__(self, store: TokenStore, part: str) -> None:
        self._store = store
        self._shards = store.index.of_part(part)
        # Tokens before each shard, and of all.
        self._starts: Ids = np.cumsum([0, *(shard.num_tokens for shard in self._shards)], dtype=np.int64)
        self._maps: dict[int, _Mapped] = {}
        self._masks: dict[int, _Mapped] = {}

    @property
    def num_tokens(self) -> int:
        """Of all shards."""
        return int(self._starts[-1])

    def num_samples(self, seq_len: int) -> int:
        """Windows of `seq_len` + 1 tokens that overlap by one; they run on from one shard into the next."""
        return max(0, (self.num_tokens - 1) // seq_len)

    def num_left_over(self, seq_len: int) -> int:
        """Tokens at the very end that no sample reaches."""
        num_samples = self.num_samples(seq_len)
        return self.num_tokens - (num_samples * seq_len + 1 if num_samples else 0)

    def sample(self, index: int, seq_len: int) -> Ids:
        """The `index`-th of these windows, int64 [seq_len + 1].

        Raises ConfigError if there are ids in it that the vocabulary does not have: the shard was damaged since.
        """
        spans = self._spans(index * seq_len, seq_len + 1)
        return _joined([self._read(*span) for span in spans])

    @property
    def has_mask(self) -> bool:
        """Whether some tokens are not trained."""
        return any(shard.mask_sha256 for shard in self._shards)

    def answered(self, index: int, seq_len: int) -> Ids:
        """For each token of `sample`, 1 if its prediction is trained, else 0; int64 [seq_len + 1]."""
        return _joined([self._mask(*span) for span in self._spans(index * seq_len, seq_len + 1)])

    def _spans(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(number of the shard, first token in it, tokens) of `count` tokens of the part from `start` on."""
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while count:
            first, stop = int(self._starts[number]), int(self._starts[number + 1])
            if taken := min(count, stop - start):
                yield number, start - first, taken
            start, count, number = start + taken, count - taken, number + 1

    def _read(self, number: int, start: int, count: int) -> Ids:
        found = self._mapped(number).read(start, count)
        # An embedding would say that an index is out of range, and not whose fault that is.
        if not 0 <= int(found.min()) <= int(found.max()) < self._store.index.vocab_size:
            place = self._store.place(self._shards[number])
            raise ConfigError(
                f"{place.path} is not what it was when it was packed: a token id from {place.first_token + start} on is"
                f" not below the vocabulary's size {self._store.index.vocab_size}; copy or pack it again"
            )
        return found

    def _mapped(self, number: int) -> _Mapped:
        if number not in self._maps:
            _make_room(self._maps)
            self._maps[number] = self._store.mapped(self._shards[number])
        return self._maps[number]

    def _mask(self, number: int, start: int, count: int) -> Ids:
        if not self._shards[number].mask_sha256:
            return np.ones(count, np.int64)
        if number not in self._masks:
            _make_room(self._masks)
            self._masks[number] = self._store.mask(self._shards[number])
        return self._masks[number].read(start, count)


def _joined(parts: list[Ids]) -> Ids:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _make_room(maps: dict[int, _Mapped]) -> None:
    """A process may map 65,530 files (vm.max_map_count): a store of many small ones is mapped anew now and then."""
    if len(maps) >= _MAPS_MAX:
        del maps[next(iter(maps))]


class TokenStore:
    """A store on disk, open for reading. Shards are opened when they are first read."""

    def __init__(self, directory: Path, index: StoreIndex, places: dict[str, ShardPlace]) -> None:
        self.directory = directory
        self.index = index
        self._places = places

    @cached_property
    def train(self) -> Part:
        """What may be trained on."""
        return Part(self, TRAIN)

    @cached_property
    def held(self) -> Part:
        """What never is."""
        return Part(self, HELD)

    def place(self, shard: ShardInfo) -> ShardPlace:
        """Where its token ids are."""
        return self._places.get(shard.name) or ShardPlace(self.directory / f"{shard.name}.bin")

    def mapped(self, shard: ShardInfo) -> _Mapped:
        """Its token ids. Raises ConfigError if the file is gone or too short."""
        return self._map(self.place(shard), shard, _DTYPES[self.index.dtype])

    def mask(self, shard: ShardInfo) -> _Mapped:
        """Its loss mask. Raises ConfigError as `mapped`."""
        return self._map(ShardPlace(self.directory / f"{shard.name}.mask"), shard, np.uint8)

    def _map(self, place: ShardPlace, shard: ShardInfo, dtype: type[np.integer[Any]]) -> _Mapped:
        try:
            return _Mapped(place, shard, dtype)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"token store {self.directory}: {place.path} cannot be read ({error}); copy it again"
            ) from error

    def ends(self, shard: ShardInfo) -> Ids:
        """Where its documents end, in tokens. Raises ConfigError."""
        path = self.directory / f"{shard.name}.ends"
        try:
            found = np.fromfile(path, dtype="<i8", count=shard.num_documents)
        except OSError as error:
            raise ConfigError(
                f"token store {self.directory}: {path} cannot be read ({error}); copy it again"
            ) from error
        bounds = np.concatenate([[0], found, [shard.num_tokens]])
        if (bounds[1:] < bounds[:-1]).any():
            raise ConfigError(f"{path} is not what it was when it was packed; copy or pack it again")
        return found

    def check_sizes(self) -> None:
        """Every shard is there in its full length, with its ends and mask. Raises ConfigError (hashes: describe.py)."""
        item = np.dtype(_DTYPES[self.index.dtype]).itemsize
        for shard in self.index.shards:
            place = self.place(shard)
            self._check_size(place.path, (place.first_token + shard.num_tokens) * item)
            self._check_size(self.directory / f"{shard.name}.ends", shard.num_documents * 8)
            if shard.mask_sha256:
                self._check_size(self.directory / f"{shard.name}.mask", shard.num_tokens)

    def _check_size(self, path: Path, wanted: int) -> None:
        try:
            size = path.stat().st_size
        except OSError:
            size = -1
        if size < wanted:
            state = "is missing" if size < 0 else f"has {size} of {wanted} bytes"
            raise ConfigError(f"token store {self.directory}: {path} {state}; copy or pack it again")


def open_store(directory: Path) -> TokenStore:
    """The store in `directory`, its files checked for their lengths. Raises ConfigError."""
    index = read_index(directory / INDEX)
    try:
        places = _places(directory)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{directory / PATHS} is damaged ({error}); pack or copy the store again") from error
    store = TokenStore(directory, index, places)
    store.check_sizes()
    return store


def is_store(directory: Path) -> bool:
    """True if `directory` looks like a token store."""
    return (directory / INDEX).is_file()


def _places(directory: Path) -> dict[str, ShardPlace]:
    path = directory / PATHS
    if not path.exists():
        return {}
    tables = json.loads(path.read_bytes())
    if not isinstance(tables, dict):
        raise ValueError("it is no table of shards")
    found: dict[str, ShardPlace] = {}
    for name, row in tables.items():
        if not isinstance(row, dict) or not isinstance(row.get("path"), str) or type(row.get("first_token")) is not int:
            raise ValueError(f"{name!r} needs path, a text, and first_token, a number")
        if not 0 <= row["first_token"] <= TOKENS_MAX or "\0" in row["path"]:
            raise ValueError(f"{name!r} has first_token {row['first_token']} in {row['path']!r}")
        found[name] = ShardPlace(directory / row["path"], row["first_token"])
    return found
