"""Stores whose windows tell where they were cut, so that what a run really read is counted document by document."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dilocoxd.trainer.data.order import SampleOrder
from dilocoxd.trainer.tokens.store import INDEX, ShardInfo, StoreIndex

VOCAB_SIZE = 300
NOT_GIVEN = -1
Counts = npt.NDArray[np.int64]


class Document(NamedTuple):
    """One in one epoch of its store."""

    store: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class WrittenStore:
    """A store of random tokens: what stands where."""

    num_samples: int
    seq_len: int
    starts: Counts
    """First token of each document."""
    places: Mapping[bytes, int]
    """First token of each window, wherever it is cut."""


def write_documents(folder: Path, num_samples: int, seq_len: int, seed: int) -> WrittenStore:
    """Documents of 1 token to three samples, which begin and end anywhere in samples."""
    random = np.random.default_rng(seed)
    num_tokens = num_samples * seq_len
    tokens = random.integers(0, VOCAB_SIZE, num_tokens + 1).astype("<u2")
    ends = np.cumsum(random.integers(1, 3 * seq_len, num_tokens))
    ends = np.append(ends[ends < num_tokens], num_tokens)
    folder.mkdir()
    tokens.tofile(folder / "train-00000.bin")
    # The last token of a store is never an input; here it is a document that nobody counts.
    np.append(ends, num_tokens + 1).astype("<i8").tofile(folder / "train-00000.ends")
    shard = ShardInfo("train-00000", num_tokens + 1, len(ends) + 1, "0" * 64, "0" * 64)
    (folder / INDEX).write_bytes(StoreIndex("uint16", VOCAB_SIZE, None, "", (shard,)).canonical_bytes())
    ids = tokens.astype(np.int64)
    places = {ids[start : start + seq_len].tobytes(): start for start in range(num_tokens - seq_len + 1)}
    assert len(places) == num_tokens - seq_len + 1, "two windows with the same tokens; take another seed"
    return WrittenStore(num_samples, seq_len, np.append(0, ends[:-1]), places)


def counts_by_document(
    stores: Mapping[str, WrittenStore], order: SampleOrder, counted: Counter[int], num_samples: int
) -> dict[Document, set[int]]:
    """How often the tokens of each document were read; `counted` says it of each of the first `num_samples` samples.

    What is in a sample is asked of the trainers' `order`. Epochs of which samples are missing are left out.
    """
    order.begin((0, num_samples))
    windows, _ = order.batch(0, num_samples)
    found: dict[tuple[str, int], Counts] = {}
    seen: Counter[str] = Counter()
    for sample, ids in enumerate(row.numpy().tobytes() for row in windows):
        ((name, store, start),) = [(name, one, one.places[ids]) for name, one in stores.items() if ids in one.places]
        epoch = seen[name] // store.num_samples
        seen[name] += 1
        counts = found.setdefault((name, epoch), np.full(store.num_samples * store.seq_len, NOT_GIVEN))
        assert (counts[start : start + store.seq_len] == NOT_GIVEN).all(), "twice in one epoch"
        counts[start : start + store.seq_len] = counted[sample]
    return {
        Document(name, epoch, number): set(part.tolist())
        for (name, epoch), counts in found.items()
        if epoch < seen[name] // stores[name].num_samples
        for number, part in enumerate(np.split(counts, stores[name].starts[1:]))
    }
