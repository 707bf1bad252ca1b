"""The token store: a folder with index.json and shards of token ids, larger than memory, never changed once made.

``index.json`` names every shard with its number of tokens and documents and its sha256, so the hash of the index names
all of the content. A shard is ``<name>.bin`` (token ids, little endian, each document followed by the end token if the
store has one) and ``<name>.ends`` (int64: where each document ends, in tokens). Shards whose name begins with "held-"
are held out. Of conversations there is ``<name>.mask`` (a byte for each token: 1 where it is part of an answer, whose
prediction is trained, else 0). ``paths.json`` is there only if the shards lie elsewhere (`dilocoxd data adopt`); it is
not hashed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dilocoxd.config.tokens.files import PATHS, ShardPlace, StoreFiles, files_of, volumes_of
from dilocoxd.config.tokens.index import HELD, INDEX, TRAIN, ShardInfo, StoreIndex
from dilocoxd.errors import ConfigError, reason_of

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


class _Mapped:
    """The token ids of one shard, mapped; what was touched is given back now and then."""

    def __init__(self, place: ShardPlace, info: ShardInfo, dtype: type[np.integer[Any]]) -> None:
        self._dtype = np.dtype(dtype)
        self._num_tokens = info.num_tokens
        start = place.first_token * self._dtype.itemsize
        self._skip = start % mmap.ALLOCATIONGRANULARITY
        length = info.num_tokens * self._dtype.itemsize + self._skip
        with place.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ, offset=start - self._skip)
        self._path, self._end = place.path, start - self._skip + length
        self._map.madvise(mmap.MADV_RANDOM)
        self._touched = 0

    def rows(self, starts: Ids, count: int) -> Ids:
        """`count` ids from each of `starts` on, a copy, int64 [N, count]. Raises ConfigError if the file was cut off
        since."""
        if self._map.size() < self._end:
            # To touch what is gone ends the process by SIGBUS, without a word.
            raise ConfigError(f"{self._path} became shorter while it was read; copy or pack it again")
        item = self._dtype.itemsize
        each = count * item + 2 * _FAULT_BYTES
        at_once = max(1, _TOUCHED_BYTES_MAX // each)
        if len(starts) > at_once:
            return np.concatenate([self.rows(starts[n : n + at_once], count) for n in range(0, len(starts), at_once)])
        self._touched += len(starts) * each
        if self._touched > _TOUCHED_BYTES_MAX:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = len(starts) * each
        # A row of this view for each place at which one can begin; only those asked for are read.
        shape, strides = (self._num_tokens - count + 1, count), (item, item)
        every: npt.NDArray[Any] = np.ndarray(shape, self._dtype, self._map, self._skip, strides)
        return every[starts].astype(np.int64)


class Part:
    """The training or the held-out part of a store, or a volume of it, as samples of a given length."""

    def __init__(self, store: TokenStore, shards: Sequence[ShardInfo]) -> None:
        self._store = store
        self._shards = shards
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

    def samples(self, indices: Ids, seq_len: int) -> Ids:
        """These of the windows, int64 [N, seq_len + 1].

        Raises ConfigError if there are ids in it that the vocabulary does not have: the shard was damaged since.
        """
        return self._rows(indices * seq_len, seq_len + 1, self._read)

    @cached_property
    def has_mask(self) -> bool:
        """Whether some tokens are not trained."""
        return any(shard.mask_sha256 for shard in self._shards)

    def answered(self, indices: Ids, seq_len: int) -> Ids:
        """For each token of `samples`, 1 if its prediction is trained, else 0; int64 [N, seq_len + 1]."""
        return self._rows(indices * seq_len, seq_len + 1, self._mask)

    def _rows(self, starts: Ids, count: int, read: Callable[[int, Ids, int], Ids]) -> Ids:
        """What `read` has of `count` tokens from each of `starts` on, which may run on into the next shards."""
        first = int(self._starts.searchsorted(starts.min(), "right")) - 1
        if starts.max() + count <= self._starts[first + 1]:
            return read(first, starts - self._starts[first], count)
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        is_whole = starts + count <= self._starts[numbers + 1]
        found = np.empty((len(starts), count), np.int64)
        for number in np.unique(numbers[is_whole]).tolist():
            mine = np.flatnonzero(is_whole & (numbers == number))
            found[mine] = read(number, starts[mine] - self._starts[number], count)
        for row in np.flatnonzero(~is_whole).tolist():
            spans = self._spans(int(starts[row]), count)
            found[row] = np.concatenate([read(number, np.asarray([first]), n)[0] for number, first, n in spans])
        return found

    def _spans(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(number of the shard, first token in it, tokens) of `count` tokens of the part from `start` on."""
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while count:
            first, stop = int(self._starts[number]), int(self._starts[number + 1])
            if taken := min(count, stop - start):
                yield number, start - first, taken
            start, count, number = start + taken, count - taken, number + 1

    def _read(self, number: int, starts: Ids, count: int) -> Ids:
        found = self._mapped(number).rows(starts, count)
        # An embedding would say that an index is out of range, and not whose fault that is. Below zero is very large.
        if found.view(np.uint64).max() >= self._store.index.vocab_size:
            is_sound = ((found >= 0) & (found < self._store.index.vocab_size)).all(axis=1)
            place = self._store.place(self._shards[number])
            raise ConfigError(
                f"{place.path} is not what it was when it was packed: a token id from"
                f" {place.first_token + int(starts[~is_sound][0])} on is not below the vocabulary's size"
                f" {self._store.index.vocab_size}; copy or pack it again"
            )
        return found

    def _mapped(self, number: int) -> _Mapped:
        if number not in self._maps:
            _make_room(self._maps)
            self._maps[number] = self._store.mapped(self._shards[number])
        return self._maps[number]

    def _mask(self, number: int, starts: Ids, count: int) -> Ids:
        if not self._shards[number].mask_sha256:
            return np.ones((len(starts), count), np.int64)
        if number not in self._masks:
            _make_room(self._masks)
            self._masks[number] = self._store.mask(self._shards[number])
        return self._masks[number].rows(starts, count)


def _make_room(maps: dict[int, _Mapped]) -> None:
    """A process may map 65,530 files (vm.max_map_count): a store of many small ones is mapped anew now and then."""
    if len(maps) >= _MAPS_MAX:
        del maps[next(iter(maps))]


class TokenStore:
    """A store on disk, open for reading. Shards are opened when they are first read."""

    def __init__(self, files: StoreFiles) -> None:
        self.directory = files.directory
        self.index = files.index
        self._files = files

    @cached_property
    def train(self) -> Part:
        """What may be trained on."""
        return Part(self, self.index.of_part(TRAIN))

    def volumes(self, count: int) -> tuple[Part, ...]:
        """The same in so many volumes (docs/data.md)."""
        return tuple([Part(self, shards) for shards in volumes_of(self.index, count)])

    @cached_property
    def held(self) -> Part:
        """What never is."""
        return Part(self, self.index.of_part(HELD))

    def place(self, shard: ShardInfo) -> ShardPlace:
        """Where its token ids are."""
        return self._files.place(shard)

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
                f"token store {self.directory}: {place.path} cannot be read ({reason_of(error)}); copy it again"
            ) from error

    def ends(self, shard: ShardInfo) -> Ids:
        """Where its documents end, in tokens. Raises ConfigError."""
        path = self.directory / f"{shard.name}.ends"
        try:
            found = np.fromfile(path, dtype="<i8", count=shard.num_documents)
        except OSError as error:
            raise ConfigError(
                f"token store {self.directory}: {path} cannot be read ({reason_of(error)}); copy it again"
            ) from error
        bounds = np.concatenate([[0], found, [shard.num_tokens]])
        if (bounds[1:] < bounds[:-1]).any():
            raise ConfigError(f"{path} is not what it was when it was packed; copy or pack it again")
        return found

    def lacks(self, shard: ShardInfo) -> bool:
        """Whether some of it is not here."""
        return bool(self._files.problem(shard))


def open_store(directory: Path, num_volumes: int = 1) -> TokenStore:
    """The store in `directory`, the lengths of its files checked; one of its volumes is enough. Raises ConfigError."""
    files = files_of(directory)
    files.check(num_volumes)
    return TokenStore(files)


def is_store(directory: Path) -> bool:
    """True if `directory` looks like a token store."""
    return (directory / INDEX).is_file()
