"""Exact epochs: sample g of the run to (source, epoch, window), a pure function, so that no iterator is ever saved.

Which source: a fixed pattern of PATTERN picks with the sources' weights (largest remainder), spread evenly. Which
window: the source's epoch e reads all of its windows in an order of its own, a keyed permutation (Feistel network with
cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002) keyed by (seed, source, e).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from dilocoxd.config.sections.sources import PATTERN, pick_counts

_ROUNDS: Final = 6
_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MULTIPLIERS: Final = tuple(map(np.uint64, _FACTORS))
_SHIFTS: Final = tuple(map(np.uint64, (30, 27, 31)))
_WORD: Final = (1 << 64) - 1
_FEW: Final = 8
"""An array of so many samples takes as long as each of them alone."""

Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SourceSize:
    """What the order must know of a source."""

    name: str
    weight: float
    num_samples: int


class EpochOrder:
    """Maps sample numbers of a run to windows of its sources."""

    def __init__(self, sources: Sequence[SourceSize], seed: int) -> None:
        """`seed` from the manifest; weights and sizes above zero."""
        self._sources = tuple(sources)
        self._seed = seed
        self._pattern = pick_pattern([source.weight for source in sources])
        # Picks of each source before each place of the pattern, and in all of it.
        self._before = np.stack([np.cumsum(self._pattern == k) - (self._pattern == k) for k in range(len(sources))])
        self._counts = np.bincount(self._pattern, minlength=len(sources))

    def locate(self, samples: Numbers) -> tuple[Numbers, Numbers]:
        """(source, window) of each sample number."""
        rounds, places = np.divmod(samples, PATTERN)
        which = self._pattern[places]
        ordinals = rounds * self._counts[which] + self._before[which, places]
        windows = np.empty_like(samples)
        for number, source in enumerate(self._sources):
            mine = np.flatnonzero(which == number)
            epochs, inside = np.divmod(ordinals[mine], source.num_samples)
            for epoch in set(epochs.tolist()):
                chosen = epochs == epoch
                key = f"{self._seed}/{source.name}/{epoch}"
                windows[mine[chosen]] = permuted(inside[chosen], source.num_samples, key)
        return which, windows


def pick_pattern(weights: Sequence[float]) -> Numbers:
    """Numbers of the sources, PATTERN of them, each as often as its weight says and evenly spread."""
    counts = pick_counts(weights)
    # Each pick of a source is due at the middle of its part of the pattern; ties go to the source named first.
    due = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
    numbers = np.repeat(np.arange(len(counts)), counts)
    picks: Numbers = numbers[np.lexsort((numbers, due))].astype(np.int64)
    return picks


def permuted(indices: Numbers, size: int, key: str) -> Numbers:
    """Where the permutation of 0 .. size - 1 named by `key` puts each of `indices`."""
    half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    keys = _round_keys(key)
    # The network permutes a power of four; what falls outside walks on until it is inside.
    found = _feistel(indices.astype(np.uint64), half, keys)
    out = np.flatnonzero(found >= np.uint64(size))
    while len(out) > _FEW:
        found[out] = _feistel(found[out], half, keys)
        out = out[found[out] >= np.uint64(size)]
    for place in out.tolist():
        found[place] = _walked(int(found[place]), size, half, keys)
    return found.astype(np.int64)


def _feistel(values: _Words, half: int, keys: Sequence[int]) -> _Words:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for word in keys:
        left, right = right, left ^ (_mixed(right ^ np.uint64(word)) & mask)
    return (left << shift) | right


def _walked(value: int, size: int, half: int, keys: Sequence[int]) -> int:
    """The first of `value`, `_feistel` of it, `_feistel` of that, ... that is inside."""
    mask = (1 << half) - 1
    while value >= size:
        left, right = value >> half, value & mask
        for word in keys:
            mixed = right ^ word
            mixed = (mixed ^ (mixed >> 30)) * _FACTORS[0] & _WORD
            mixed = (mixed ^ (mixed >> 27)) * _FACTORS[1] & _WORD
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) & mask)
        value = (left << half) | right
    return value


@lru_cache(maxsize=256)
def _round_keys(key: str) -> tuple[int, ...]:
    digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS, person=b"data-epoch").digest()
    return tuple(int.from_bytes(digest[start : start + 8], "little") for start in range(0, len(digest), 8))


def _mixed(words: _Words) -> _Words:
    """A word of well mixed bits for each word (the finalizer of splitmix64, Steele et al. 2014)."""
    # Of a few words, to make these numbers costs as much as to use them.
    words = (words ^ (words >> _SHIFTS[0])) * _MULTIPLIERS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return words ^ (words >> _SHIFTS[2])
