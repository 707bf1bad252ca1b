"""Losses on held-out text, and what another state does to them: batch by batch, for the text is the same.

Differences of the same batches have far less noise than losses have. Source: docs/adr/0039-loss-without-one-site.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dilocoxd.trainer.data.targets import share_trained
from dilocoxd.wire.local.trainer import NOT_FINITE, LeftOut


@dataclass(frozen=True, slots=True)
class BatchLosses:
    """Of one source: losses times the part of the batch's targets that count, those parts, and targets in all."""

    losses: Sequence[float]
    parts: Sequence[float]
    num_targets: Sequence[int]

    @classmethod
    def of(cls, losses: Sequence[float], batches: Sequence[tuple[Tensor, Tensor]]) -> BatchLosses:
        """`losses`: of Pipeline.losses; `batches`: of which they are, (ids, targets)."""
        targets = [targets_BT for _, targets_BT in batches]
        return cls(losses, [share_trained(one) for one in targets], [one.numel() for one in targets])

    @property
    def mean(self) -> tuple[float, float]:
        """Over all batches, and how many targets count in them."""
        counted = sum(part * num for part, num in zip(self.parts, self.num_targets, strict=True))
        return sum(self.losses) / max(sum(self.parts), 1e-12), counted


def compared(place: int, whole: Sequence[BatchLosses], without: Sequence[BatchLosses]) -> tuple[LeftOut, ...]:
    """What the contribution in `place` added to the loss, over all batches of all sources; nothing if that is no
    number."""
    added: list[float] = []
    weights: list[float] = []
    for with_it, other in zip(whole, without, strict=True):
        rows = zip(with_it.losses, other.losses, with_it.parts, with_it.num_targets, strict=True)
        for loss, loss_without, part, num_targets in rows:
            if part > 0:
                added.append((loss - loss_without) / part)
                weights.append(part * num_targets)
    if not added or not all(abs(one) < NOT_FINITE for one in added):
        return ()
    mean = math.fsum(a * w for a, w in zip(added, weights, strict=True)) / math.fsum(weights)
    deviation = statistics.stdev(added) / math.sqrt(len(added)) if len(added) > 1 else 0.0
    return (LeftOut(place, mean, deviation),)
