"""The loss of a batch: mean over the targets that are trained, whatever part of the batch they are in."""

# Shape legend: B sequences, T positions, V vocabulary.
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor
from torch.nn import functional

NOT_TRAINED: Final = -100
"""A target whose prediction does not count: torch's own mark."""


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean loss in nats per target that counts; NaN if none does."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=NOT_TRAINED)


def mean_loss(out: Tensor, targets_BT: Tensor) -> Tensor:
    """`cross_entropy` of what a last stage gave: logits [B, T, V], or the sum of the losses, []."""
    return cross_entropy(out, targets_BT) if out.dim() else out / (targets_BT != NOT_TRAINED).sum()


def share_trained(targets_BT: Tensor) -> float:
    """Part of the targets that count, 0 to 1."""
    return float((targets_BT != NOT_TRAINED).float().mean())


class PartLoss:
    """Loss of a part of a batch, scaled so that the mean over equal parts is the mean over all targets that count.

    With every target counted it is the part's own mean, to the bit.
    """

    def __init__(self, num_parts: int) -> None:
        self._num_parts = num_parts
        self._per_part: float | None = None

    def begin(self, targets_BT: Tensor) -> None:
        """A batch with these targets comes, all of its parts."""
        count = int((targets_BT != NOT_TRAINED).sum())
        self._per_part = None if count == targets_BT.numel() else max(1, count) / self._num_parts

    def __call__(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Of one part. Instead of logits there may be the sum of its losses, [] (StageModule.summed_loss)."""
        if self._per_part is None:
            return mean_loss(logits_BTV, targets_BT)
        if logits_BTV.dim() == 0:
            return logits_BTV / self._per_part
        total = functional.cross_entropy(
            logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=NOT_TRAINED, reduction="sum"
        )
        return total / self._per_part


def mean_over(losses: Mapping[str, tuple[float, float]]) -> float:
    """The mean over all sources of (mean loss, weight): each as much as it has targets that count."""
    if len(losses) == 1:
        return next(iter(losses.values()))[0]
    weights = sum(weight for _, weight in losses.values())
    return sum(loss * weight for loss, weight in losses.values()) / weights if weights else 0.0
