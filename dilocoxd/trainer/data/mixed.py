"""Shared and private token stores of one run, as one order: which samples of a phase come from which (ADR 33).

Of b samples of a phase a are shared: sample k, from 0, whatever its step, is one if (k + 1) * a // b > k * a // b. So
the number of them follows from the length of the phase alone, and with it from the tokens of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dilocoxd.trainer.data.order import SampleOrder
from dilocoxd.trainer.data.sources import SourceOrder, TextSource


@dataclass(frozen=True, slots=True)
class StoreReading:
    """How a run reads its stores, whichever they are."""

    seq_len: int
    vocab_size: int
    seed: int
    has_document_mask: bool = False


def order_of(
    sources: Sequence[TextSource], reading: StoreReading, own_stream: str, leased_share: tuple[int, int]
) -> SampleOrder:
    """What a site reads that has these stores. `own_stream` names its order of private ones. Raises ConfigError."""
    shared = [source for source in sources if not source.is_private]
    private = [source for source in sources if source.is_private]
    if not private:
        return _order(shared, reading)
    own = _order(private, reading, own_stream)
    return MixedOrder(_order(sources, reading), _order(shared, reading), own, leased_share) if shared else own


def _order(sources: Sequence[TextSource], reading: StoreReading, own_stream: str = "") -> SourceOrder:
    return SourceOrder(
        sources,
        reading.seq_len,
        reading.vocab_size,
        seed=reading.seed,
        has_document_mask=reading.has_document_mask,
        own_stream=own_stream,
    )


class MixedOrder:
    """Batches of leased samples and, between them, of the site's own."""

    def __init__(
        self, every: SourceOrder, shared: SourceOrder, own: SourceOrder, leased_share: tuple[int, int]
    ) -> None:
        """`every` has all stores that are here, for validation. `leased_share`: (a, b), 0 < a < b."""
        self.document_end = every.document_end
        self.own_position = 0
        self._every, self._shared, self._own = every, shared, own
        self._leased_share = leased_share
        self._next = 0

    def begin(self, samples: Sequence[int], volume: int = 0) -> None:
        """The next phase reads these shared samples of a volume: start, stop, start, stop, ..."""
        self._shared.begin(samples, volume)
        self._next = 0

    def batch(self, position: int, num_sequences: int) -> tuple[Tensor, Tensor]:
        """(ids, targets), both [num_sequences, seq_len] int64: the next of the phase, and the next of the own ones.

        Raises WorkerError if the phase has read all that it leased.
        """
        leased, of_so_many = self._leased_share
        bounds = np.arange(self._next, self._next + num_sequences + 1) * leased // of_so_many
        is_shared = torch.from_numpy(bounds[1:] > bounds[:-1])
        self._next += num_sequences
        num_shared = int(is_shared.sum())
        num_own = num_sequences - num_shared
        parts = []
        if num_shared:
            parts.append((is_shared, self._shared.batch(position, num_shared)))
        if num_own:
            parts.append((~is_shared, self._own.batch(self.own_position, num_own)))
        self.own_position += num_own
        first_ids, first_targets = parts[0][1]
        shape = (num_sequences, first_ids.shape[1])
        ids, targets = first_ids.new_empty(shape), first_targets.new_empty(shape)
        for rows, (part_ids, part_targets) in parts:
            ids[rows], targets[rows] = part_ids, part_targets
        return ids, targets

    def validation_batches(self, num_sequences: int, batch_sequences: int) -> list[tuple[Tensor, Tensor]]:
        """Held-out windows of all stores that are here."""
        return self._every.validation_batches(num_sequences, batch_sequences)

    def validation_by_source(self, num_sequences: int, batch_sequences: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """The same by the name of their source."""
        return self._every.validation_by_source(num_sequences, batch_sequences)
