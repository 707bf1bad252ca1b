"""The token stores of a run, as one order of samples: what the trainers read when `data.sources` names any."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.sources import common_end, store_remedy
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import sources_here, store_path
from dilocoxd.config.tokens.files import require_volumes
from dilocoxd.errors import ConfigError, WorkerError
from dilocoxd.trainer.data.epochs import EpochOrder, Numbers, SourceSize
from dilocoxd.trainer.data.targets import NOT_TRAINED
from dilocoxd.trainer.tokens.store import Part, TokenStore, open_store

LOCATED_AT_ONCE: Final = 1024
"""Samples whose places are found together: it takes about as long for a thousand as for the eight of a small batch."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """One store of the run, and where it lies here."""

    name: str
    weight: float
    sha256: str
    path: str
    is_private: bool = False
    num_volumes: int = 1
    """Into which it is cut; one of them is enough here."""


def sources_of(manifest: Manifest, site: SiteConfig) -> tuple[TextSource, ...]:
    """The run's stores, of private ones those that are here; none if it trains on one text.

    Raises ConfigError for one whose path is not known.
    """
    found = []
    for one in sources_here(manifest, site):
        num_volumes = 1 if one.private else manifest.data.num_volumes
        path = store_path(one, site)
        found.append(TextSource(one.name, one.weight, one.sha256, path, one.private, num_volumes))
    return tuple(found)


def open_source(source: TextSource, vocab_size: int) -> TokenStore:
    """The store, if it is the run's. Raises ConfigError."""
    store = open_store(Path(source.path), source.num_volumes)
    if store.index.sha256() != source.sha256:
        raise ConfigError(
            f"{source.path} is not the run's token store {source.name!r}: its hash is {store.index.sha256()}, the"
            f" run's {source.sha256}; {store_remedy(is_private=source.is_private)}"
        )
    if store.index.vocab_size > vocab_size:
        raise ConfigError(
            f"{source.path} has {store.index.vocab_size} kinds of tokens, model.vocab_size = {vocab_size};"
            " give a store of the run's tokenizer"
        )
    return store


READ_AHEAD_TOKENS: Final = 1 << 14
"""Read at once where a batch has fewer: behind an inner step of a small model each call finds the caches cold, and one
for many batches takes little longer than one for its own."""


@dataclass(frozen=True, slots=True)
class _Located:
    """Where the samples `first`, `first` + 1, ... of an order are: their sources and windows, both [N]."""

    first: int
    which: Numbers
    windows: Numbers

    def has(self, first: int, stop: int) -> bool:
        return self.first <= first and stop <= self.first + len(self.windows)

    def places(self, first: int, stop: int) -> tuple[Numbers, Numbers]:
        """(sources, windows), both [stop - first]"""
        chosen = slice(first - self.first, stop - self.first)
        return self.which[chosen], self.windows[chosen]


class _Read:
    """The samples from `first` to before `stop` of an order, and the batches of `size` that they are, cut all at once:
    a cut for each takes longer than all else that a batch still needs."""

    def __init__(self, first: int, size: int, ids: Tensor, targets: Tensor) -> None:
        """`ids` and `targets`: [N, seq_len] int64."""
        self._first, self._stop, self._size = first, first + len(ids), size
        self._ids, self._targets = ids, targets
        self._batches = tuple(zip(torch.split(ids, size), torch.split(targets, size), strict=True))

    def has(self, first: int, stop: int) -> bool:
        return self._first <= first and stop <= self._stop

    def rows(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """(ids, targets), both [stop - first, seq_len]"""
        number, rest = divmod(first - self._first, self._size)
        if stop - first == self._size and not rest:
            return self._batches[number]
        chosen = slice(first - self._first, stop - self._first)
        return self._ids[chosen], self._targets[chosen]


_NOWHERE: Final = _Located(0, np.zeros(0, np.int64), np.zeros(0, np.int64))
_NOTHING: Final = _Read(0, 1, *torch.zeros((2, 0, 0), dtype=torch.int64))


class SourceOrder:
    """Batches of the samples that a phase has leased; targets are the ids one token later, or NOT_TRAINED."""

    own_position = 0

    def __init__(
        self,
        sources: Sequence[TextSource],
        seq_len: int,
        vocab_size: int,
        *,
        seed: int,
        has_document_mask: bool = False,
        own_stream: str = "",
    ) -> None:
        """Opens all stores. With `own_stream`, the name of the site's order, nothing is leased. Raises ConfigError."""
        self._seq_len = seq_len
        stores = [open_source(source, vocab_size) for source in sources]
        ends = {source.name: store.index.eos for source, store in zip(sources, stores, strict=True)}
        self.document_end = common_end(ends) if has_document_mask else None
        self._sources, self._seed = sources, _own_seed(seed, own_stream) if own_stream else seed
        self._volumes = [store.volumes(one.num_volumes) for store, one in zip(stores, sources, strict=True)]
        self._held = [store.held for store in stores]
        self._names = [source.name for source in sources]
        for source, store in zip(sources, stores, strict=True):
            if not store.train.num_samples(seq_len):
                raise ConfigError(f"{source.path} has no window of {seq_len + 1} tokens: lower model.seq_len")
            require_volumes(source.name, store.index, source.num_volumes, seq_len)
        self._is_own = bool(own_stream)
        self._orders: dict[int, EpochOrder] = {}
        self._volume = 0
        self._leased: Numbers = np.zeros(0, np.int64)
        self._next = 0
        self._located = _NOWHERE
        self._read = _NOTHING

    def begin(self, samples: Sequence[int], volume: int = 0) -> None:
        """The next phase reads these samples of a volume: start, stop, start, stop, ... (machines/reading)."""
        self._volume = volume
        bounds = zip(samples[::2], samples[1::2], strict=True)
        self._leased = np.concatenate([np.zeros(0, np.int64), *(np.arange(*bound) for bound in bounds)])
        self._next = 0
        self._located = _NOWHERE
        self._read = _NOTHING

    def batch(self, position: int, num_sequences: int) -> tuple[Tensor, Tensor]:
        """(ids, targets), both [num_sequences, seq_len] int64: the next of the phase; in an own order those at
        `position`, sequences of the site's life.

        Raises WorkerError if the phase has read all that it leased.
        """
        first = position if self._is_own else self._next
        stop = first + num_sequences
        if not self._is_own and stop > len(self._leased):
            raise WorkerError(f"a phase asked for more than the {len(self._leased)} samples that it leased")
        self._next += num_sequences
        if not self._read.has(first, stop):
            ahead = first + num_sequences * max(1, READ_AHEAD_TOKENS // (num_sequences * self._seq_len))
            samples = self._stretch(first, ahead if self._is_own else min(ahead, len(self._leased)))
            self._read = _Read(first, num_sequences, *samples)
        return self._read.rows(first, stop)

    def _stretch(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Ids and targets of the samples from `first` to before `stop`."""
        if not self._located.has(first, stop):
            end = max(stop, first + LOCATED_AT_ONCE)
            samples = np.arange(first, end) if self._is_own else self._leased[first:end]
            self._located = _Located(first, *self._order().locate(samples))
        parts = [volumes[self._volume] for volumes in self._volumes]
        return self._windows(parts, *self._located.places(first, stop))

    def _order(self) -> EpochOrder:
        """Of the volume that is read: a run on parts of its stores, with epochs of its own."""
        number = self._volume
        if number not in self._orders:
            sizes = [
                SourceSize(
                    f"{source.name}/{number}" if len(volumes) > 1 else source.name,
                    source.weight,
                    volumes[number].num_samples(self._seq_len),
                )
                for source, volumes in zip(self._sources, self._volumes, strict=True)
            ]
            self._orders[number] = EpochOrder(sizes, self._seed)
        return self._orders[number]

    def validation_batches(self, num_sequences: int, batch_sequences: int) -> list[tuple[Tensor, Tensor]]:
        """The same evenly spread windows of all held-out parts for every site and every call; full batches only.

        Raises ConfigError if nothing was held out.
        """
        found = self.validation_by_source(num_sequences, batch_sequences)
        return [batch for batches in found.values() for batch in batches]

    def validation_by_source(self, num_sequences: int, batch_sequences: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """The same by the name of their source; a source that holds nothing out is not there."""
        found: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, part in zip(self._names, self._held, strict=True):
            there = part.num_samples(self._seq_len)
            count = min(there, max(1, num_sequences // len(self._held)))
            windows = np.linspace(0, there - 1, count).astype(np.int64)
            size = min(batch_sequences, count)
            starts = range(0, count - size + 1, size) if size else range(0)
            if starts:
                which = np.zeros(size, np.int64)
                found[name] = [self._windows([part], which, windows[start : start + size]) for start in starts]
        if not found:
            raise ConfigError(
                f"nothing is held out in {', '.join(self._names)}: pack with --held-out, or have fewer tokens in a"
                " window (model.seq_len)"
            )
        return found

    def _windows(self, parts: Sequence[Part], which: Numbers, windows: Numbers) -> tuple[Tensor, Tensor]:
        """Ids and targets of windows [N]; `which` of the parts each is in, [N]."""
        rows = _read_from(parts, which, windows, lambda part, mine: part.samples(mine, self._seq_len))
        # Copies: views would share what is not trained.
        ids, targets = rows[:, :-1].copy(), rows[:, 1:].copy()
        if any(part.has_mask for part in parts):
            answered = _read_from(parts, which, windows, lambda part, mine: part.answered(mine, self._seq_len))
            targets[answered[:, 1:] == 0] = NOT_TRAINED
        if self.document_end is not None:
            # The first token of a document does not follow from the one before it, which it cannot see.
            targets[ids == self.document_end] = NOT_TRAINED
        return torch.from_numpy(ids), torch.from_numpy(targets)


def _read_from(
    parts: Sequence[Part], which: Numbers, windows: Numbers, read: Callable[[Part, Numbers], Numbers]
) -> Numbers:
    """What `read` has of each window, [N, seq_len + 1]: one call for each part, in the order of the windows."""
    if len(parts) == 1:
        return read(parts[0], windows)
    chosen = [np.flatnonzero(which == number) for number in range(len(parts))]
    found = [(mine, read(part, windows[mine])) for part, mine in zip(parts, chosen, strict=True) if len(mine)]
    rows = np.empty((len(windows), found[0][1].shape[1]), np.int64)
    for mine, values in found:
        rows[mine] = values
    return rows


def _own_seed(seed: int, stream: str) -> int:
    """Two sites that have the same private store read it in different orders."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "little")
