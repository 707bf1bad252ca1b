"""The owner's part of an exchange with all values of a segment at once; outer/reduce.py does it chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Codec, Payload
from dilocoxd.outer.reduce import Weights, weighted_mean_


def reduce_segment(
    codec: Codec,
    shares: Sequence[Payload],
    weights: Weights,
    residual: Tensor | None,
    values: Tensor,
    out: bytearray | memoryview | Tensor,
) -> None:
    """Encode mean + residual of one segment into `out`. `values`: float32[n] scratch, afterwards what was encoded."""
    _owner_values_(codec, shares, weights, residual, values)
    codec.encode(values, out)


def settle_residual_(
    codec: Codec, shares: Sequence[Payload], weights: Weights, residual: Tensor, result: Payload
) -> None:
    """residual <- (mean + residual) - decode(result): the entry with `result` committed."""
    values = torch.empty_like(residual)
    _owner_values_(codec, shares, weights, residual, values)
    residual.copy_(values)
    codec.decode(result, values)
    residual.sub_(values)


def _owner_values_(
    codec: Codec, shares: Sequence[Payload], weights: Weights, residual: Tensor | None, values: Tensor
) -> None:
    weighted_mean_(codec, shares, weights, values)
    if residual is not None:
        values.add_(residual).clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
