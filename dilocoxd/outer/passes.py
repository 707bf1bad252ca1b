"""One segment through the passes of an exchange: what a site offers, what the owner makes of it, what everybody gets.

Works for every transform; with `NoTransform` it is the same arithmetic as `reduce.reduce_in_chunks`. Nothing here
changes feedback or residual except the two `settle` functions, which run once the entry has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Payload, chunks
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.outer.clipping import ClipRecord, ClipRule, Weighing, clip_record, count_
from dilocoxd.outer.contrary import contrary_shares
from dilocoxd.outer.reduce import Weights, reduce_in_chunks, settle_in_chunks_, share_norms, weighted_mean_
from dilocoxd.wire.layout import Segment

LOOKED_AT = 1 << 15
"""Values at a time in search of one that is not zero."""


@dataclass(frozen=True, slots=True)
class SegmentPass:
    """Where in an exchange we are: `results` holds this segment's encoded results of the passes before."""

    transform: Transform
    pass_index: int
    segment: Segment
    results: tuple[Payload, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return self.transform.payload_bytes(self.pass_index, self.segment)


def encode_pass(at: SegmentPass, d: Tensor, out: bytearray | memoryview | Tensor) -> None:
    """Fill `out` with what this site offers for d = float32[segment.numel]. Raises NotEncodableError."""
    vector = at.transform.project(at.pass_index, at.segment, d, at.results)
    at.transform.codec(at.pass_index, at.segment).encode(vector, out)


def reduce_pass(
    at: SegmentPass,
    shares: Sequence[Payload],
    weights: Weights,
    residual: Tensor | None,
    out: bytearray | memoryview | Tensor,
) -> None:
    """Owner: fill `out` with the encoded mean of `shares` (sorted peer order) and residual. Raises BadShareError."""
    codec = at.transform.codec(at.pass_index, at.segment)
    if isinstance(at.transform, NoTransform):
        reduce_in_chunks(codec, shares, weights, residual, at.segment.numel, out)
        return
    mean = torch.empty(at.transform.vector_numel(at.pass_index, at.segment))
    weighted_mean_(codec, shares, weights, mean)
    at.transform.finish_mean_(at.pass_index, at.segment, mean, residual, at.results)
    codec.encode(mean.clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX), out)


def weigh_pass(
    at: SegmentPass, shares: Sequence[Payload], weights: Sequence[float], rule: ClipRule, recent: Sequence[float] = ()
) -> tuple[Weighing, ClipRecord]:
    """Owner: how these shares become a mean, and the record of it. Raises BadShareError.

    `recent`: norms that the last entries recorded of this segment. Only the last pass is counted in the sites'
    feedback; what comes before it shapes the subspace, and has neither memory nor center.
    """
    numel = at.transform.vector_numel(at.pass_index, at.segment)
    is_last = at.pass_index == at.transform.num_passes - 1
    if not rule.is_on or not numel:
        return Weighing(weights), ClipRecord(0.0, (1.0,) * len(shares))
    center, codec = rule.center if is_last else None, at.transform.codec(at.pass_index, at.segment)
    norms = share_norms(codec, shares, numel, center)
    record = clip_record(norms, recent if is_last else (), rule.kappa)
    if rule.drops_contrary:
        sizes = norms if center is None else share_norms(codec, shares, numel)
        record = record.without(contrary_shares(codec, shares, sizes, numel))
    return Weighing(weights, () if record.is_whole else record.factors, center), record


def subtract_counted_(at: SegmentPass, own: Payload, e: Tensor, factor: float, center: Tensor | None = None) -> None:
    """e <- e - what was counted of the site's own payload of the last pass. Raises WireError."""
    if factor == 1.0:
        at.transform.subtract_expanded_(at.segment, own, at.results, e)
    else:
        e.sub_(counted(at, own, factor, center))


def add_counted_(at: SegmentPass, own: Payload, e: Tensor, factor: float, center: Tensor | None = None) -> None:
    """e <- e + what was counted of the site's own payload of the last pass. Raises WireError."""
    if factor == 1.0:
        at.transform.add_expanded_(at.segment, own, at.results, e)
    else:
        e.add_(counted(at, own, factor, center))


def counted(at: SegmentPass, own: Payload, factor: float, center: Tensor | None = None) -> Tensor:
    """What the mean took of a payload of the last pass, float32[segment.numel]. Raises WireError."""
    values = torch.empty(at.segment.numel)
    at.transform.expand(at.segment, own, at.results, values)
    count_(values, factor, center)
    return values


def settle_residual_pass_(
    at: SegmentPass, shares: Sequence[Payload], weights: Weights, residual: Tensor, result: Payload
) -> None:
    """Owner, on commit: residual <- residual + mean of what was counted - Delta; `at` is the last pass."""
    if isinstance(at.transform, NoTransform):
        settle_in_chunks_(at.transform.codec(at.pass_index, at.segment), shares, weights, residual, result)
        return
    mean = torch.empty(at.transform.vector_numel(at.pass_index, at.segment))
    weighted_mean_(at.transform.codec(at.pass_index, at.segment), shares, weights, mean)
    expanded = torch.empty_like(residual)
    at.transform.expand_vector(at.segment, mean, at.results, expanded)
    residual.add_(expanded).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
    at.transform.subtract_expanded_(at.segment, result, at.results, residual)


def holds_any(values: Tensor) -> bool:
    """Whether any of float32[n] is not zero; a look at the first piece says so as a rule."""
    return any(bool(values[start:stop].any()) for start, stop in chunks(values.numel(), LOOKED_AT))


def take_over_(e: Tensor, residual: Tensor, own_weight: float) -> None:
    """Former owner: what it owed the mean goes into its own feedback, which the mean takes with `own_weight`."""
    if holds_any(residual):
        e.add_(residual.mul_(1.0 / own_weight))
        residual.zero_()
