"""How far one contribution may move the mean: a factor for each share of a segment, and the record that tells them.

    d_i = norm(c_i - v)        c_i: decoded share; v: 0, or with centered clipping the last Delta
    f_i = min(1, kappa * reference / d_i), truncated to bf16        counted_i = v + f_i (c_i - v)
The reference is the lower median of the d_i, so just under half of the group may lie. Two members have no majority:
there it is the larger of the smaller d and the median of what the last 8 entries recorded. One is never clipped.
Norms have the same bits on every machine: squares of fp32 numbers are exact in float64, and their sum is taken by
halving (`compress.codec.square_sum`), where every addition is one IEEE operation on its own. Sources: median-norm
clipping as in arXiv 2508.15706; centered clipping arXiv 2012.10333; protocol/08-compression.md, C9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Payload, as_bytes, bad_payload, load
from dilocoxd.wire.clip_record import NUMBER_BYTES

CENTERED_KAPPA: Final = 1.0
"""With centered clipping. More lets a liar drag the center, and the distances with it, further each round: measured
+23% loss at 2.5 with one of four against +1.4% at 1, and no cost where nobody lies (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class ClipRule:
    """What a run clips: `kappa` times the reference (0: nothing), around `center` = v, float32 of the whole segment;
    and whether shares that point against the others are left out (outer/contrary.py)."""

    kappa: float = 0.0
    center: Tensor | None = None
    drops_contrary: bool = False

    @property
    def is_on(self) -> bool:
        return self.kappa > 0


@dataclass(frozen=True, slots=True)
class ClipRecord:
    """What a result says of its shares: `norm` for the entries after it, and what each share was scaled by."""

    norm: float = 0.0
    factors: tuple[float, ...] = ()
    """In the order of summation; 1 counts whole, 0 not at all."""

    def without(self, places: Set[int]) -> ClipRecord:
        """The same with factor 0 in these places."""
        kept = (0.0 if place in places else factor for place, factor in enumerate(self.factors))
        return ClipRecord(self.norm, tuple(kept))

    @property
    def is_whole(self) -> bool:
        """Every share counts as it is."""
        return all(factor == 1.0 for factor in self.factors)

    def encode(self, num_places: int) -> bytes:
        """`num_places` factors behind the norm, as bf16; places of nobody hold 1."""
        numbers = torch.ones(1 + num_places)
        told = [self.norm, *self.factors][: 1 + num_places]
        numbers[: len(told)] = torch.tensor(told)
        return bytes(numbers.to(torch.bfloat16).view(torch.uint8).numpy().data)


@dataclass(frozen=True, slots=True)
class Weighing:
    """How shares become a mean: `weights` and `factors` in the order of summation (no factors: every share counts
    whole), `center` = v, float32 of the whole vector (None: 0)."""

    weights: Sequence[float]
    factors: Sequence[float] = ()
    center: Tensor | None = None

    def is_whole(self, position: int) -> bool:
        """Whether all of share `position` is counted."""
        return not self.factors or self.factors[position] == 1.0

    def apply_(self, values: Tensor, position: int, start: int) -> None:
        """values <- weight times what is counted of share `position`, whose elements from `start` on they are."""
        factor = self.factors[position] if self.factors else 1.0
        center = None if self.center is None else self.center[start : start + values.numel()]
        count_(values, factor, center)
        values.mul_(self.weights[position])


def count_(values: Tensor, factor: float, center: Tensor | None = None) -> None:
    """values <- what is counted of a decoded share; every step is one fp32 operation, none if it counts whole."""
    if factor == 1.0:
        return
    if center is None:
        values.mul_(factor)
    else:
        values.sub_(center).mul_(factor).add_(center)


def record_bytes(num_places: int) -> int:
    """Length of a record with room for so many members."""
    return NUMBER_BYTES * (1 + num_places)


def decode_record(data: Payload) -> ClipRecord:
    """The record in `data`, with all its places. Raises WireError unless the norm is finite and factors lie in 0..1."""
    norm, *factors = load(as_bytes(data), torch.bfloat16).tolist()
    if not (0 <= norm <= math.inf) or norm == math.inf or not all(0 <= factor <= 1 for factor in factors):
        raise bad_payload("the record of a result holds a norm or a factor that is out of range")
    return ClipRecord(norm, tuple(factors))


def factor_of(record: ClipRecord, place: int) -> float:
    """Of the member in this place of the order of summation."""
    return record.factors[place] if place < len(record.factors) else 1.0


def lower_median(norms: Sequence[float]) -> float:
    """The middle one; of two the smaller."""
    return sorted(norms)[(len(norms) - 1) // 2]


def clip_record(norms: Sequence[float], recent: Sequence[float], kappa: float) -> ClipRecord:
    """Factors of the members with these norms, and the norm that the entries after this one remember.

    `recent`: norms of the last entries (at most `wire.clip_record.NORMS_KEPT`), used by groups of two only.
    """
    if len(norms) == 1:
        return ClipRecord(_bf16(min(norms[0], MAGNITUDE_MAX)), (1.0,))
    reference = lower_median(norms)
    if len(norms) == 2 and recent:
        reference = max(reference, lower_median(recent))
    limit = kappa * reference
    factors = tuple(1.0 if norm <= limit else _bf16(limit / norm) for norm in norms)
    counted = [norm * factor for norm, factor in zip(norms, factors, strict=True)]
    # Two equal sites that differ in speed have unequal norms: their mean, or the faster one were clipped for ever.
    typical = sum(counted) * 0.5 if len(norms) == 2 else reference
    return ClipRecord(_bf16(min(typical, MAGNITUDE_MAX)), factors)


def _bf16(value: float) -> float:
    """The largest bf16 number that is not above `value` >= 0."""
    bits = torch.tensor([value]).view(torch.int32)
    rounded = float(bits.bitwise_and(-0x10000).view(torch.float32))
    return rounded if rounded <= value else float((bits - 0x10000).bitwise_and(-0x10000).view(torch.float32))
