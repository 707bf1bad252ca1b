"""One segment through the passes of an exchange: what a site offers, what the owner makes of it, what everybody gets.

Works for every transform; with `Identity` it is the same arithmetic as `reduce.reduce_segment`. Nothing here changes
feedback or residual except the two `settle` functions, which run once the entry has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Payload
from dilocoxd.compress.transform import Identity, Transform
from dilocoxd.outer.reduce import reduce_in_chunks, weighted_mean_
from dilocoxd.wire.layout import Segment


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
    weights: Sequence[float],
    residual: Tensor | None,
    out: bytearray | memoryview | Tensor,
) -> None:
    """Owner: fill `out` with the encoded mean of `shares` (sorted peer order) and residual. Raises BadShareError."""
    codec = at.transform.codec(at.pass_index, at.segment)
    if isinstance(at.transform, Identity):
        reduce_in_chunks(codec, shares, weights, residual, at.segment.numel, out)
        return
    mean = torch.empty(at.transform.vector_numel(at.pass_index, at.segment))
    weighted_mean_(codec, shares, weights, mean)
    at.transform.finish_mean_(at.pass_index, at.segment, mean, residual, at.results)
    codec.encode(mean.clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX), out)


def settle_residual_pass_(
    at: SegmentPass, shares: Sequence[Payload], weights: Sequence[float], residual: Tensor, result: Payload
) -> None:
    """Owner, on commit: residual <- residual + mean of the contributions - Delta; `at` is the last pass."""
    mean = torch.empty(at.transform.vector_numel(at.pass_index, at.segment))
    weighted_mean_(at.transform.codec(at.pass_index, at.segment), shares, weights, mean)
    expanded = torch.empty_like(residual)
    at.transform.expand_vector(at.segment, mean, at.results, expanded)
    residual.add_(expanded).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
    at.transform.subtract_expanded_(at.segment, result, at.results, residual)


def take_over_(e: Tensor, residual: Tensor, own_weight: float) -> None:
    """Former owner: what it owed the mean goes into its own feedback, which the mean takes with `own_weight`."""
    if bool(residual.any().item()):
        e.add_(residual.mul_(1.0 / own_weight))
        residual.zero_()
