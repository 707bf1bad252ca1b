"""Scalars as the shared path uses them: fp32, rounded once from float64, the same on every machine."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def fp32(value: float) -> float:
    """`value` rounded to the nearest fp32 number; OverflowError beyond the range of fp32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def mean_weights(tokens: Sequence[int]) -> list[float]:
    """w_i / W in float64, rounded to fp32, in the given order. Raises ValueError unless all are positive integers.

    Equal weights of a power-of-two number of shares are exact; otherwise the weights add up to 1 within M * 2**-25.
    """
    if not tokens or any(count < 1 for count in tokens):
        raise ValueError(f"weights must be positive token counts, not {list(tokens)}")
    total = sum(tokens)
    return [fp32(count / total) for count in tokens]
