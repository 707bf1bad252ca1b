"""Scalars as the shared path uses them: fp32, rounded once from float64, the same on every machine."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dilocoxd.wire.entry import RAMP_WHOLE


def fp32(value: float) -> float:
    """`value` rounded to the nearest fp32 number; OverflowError beyond the range of fp32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def capped_tokens(tokens: Sequence[int], ramps: Sequence[int] = ()) -> list[int]:
    """Each count, but at most twice the median of all (of two middle ones the smaller): what a share weighs (X2.5).

    Tokens are claimed, not proved: a liar gets twice the weight of its honest neighbours, whatever it claims.
    `ramps`: part of its weight in 64ths that each share has, empty for 64 everywhere. Who has less is on probation
    (M11): it is no part of the median, and is capped at once the median before its part is taken.
    """
    parts = ramps or [RAMP_WHOLE] * len(tokens)
    whole = sorted(count for count, part in zip(tokens, parts, strict=True) if part == RAMP_WHOLE)
    median = whole[(len(whole) - 1) // 2]
    return [
        min(count, 2 * median) if part == RAMP_WHOLE else max(1, min(count, median) * part // RAMP_WHOLE)
        for count, part in zip(tokens, parts, strict=True)
    ]


def mean_weights(tokens: Sequence[int], factors: Sequence[float] = (), ramps: Sequence[int] = ()) -> list[float]:
    """w_i / W of the capped counts in float64, rounded to fp32, in the given order. Raises ValueError unless all are
    positive integers.

    Equal weights of a power-of-two number of shares are exact; otherwise the weights add up to 1 within M * 2**-25.
    `factors` (`age_factor`, `participation`) shrink shares; W stays what it was, so that nobody else's share grows.
    """
    if not tokens or any(count < 1 for count in tokens):
        raise ValueError(f"weights must be positive token counts, not {list(tokens)}")
    weights = capped_tokens(tokens, ramps)
    total = sum(weights)
    return [fp32(count / total * factor) for count, factor in zip(weights, factors or [1.0] * len(tokens), strict=True)]


def participation(present: int, missing: int) -> float:
    """present / (present + missing): part of a whole step that a round with `present` contributors makes.

    As if those who are missing had sent zeros: a step is no larger for the noise of fewer sites, and four rounds of one
    site move the model about as far as one round of four. `missing`: by how many it is short of the fullest recent
    round (machines/chain.py). The linear scaling rule (arXiv 1706.02677), applied to sites.
    """
    return present / (present + missing)


def age_factor(age: int, decay: float, age_expected: int) -> float:
    """decay ** (age - age_expected), 1 for contributions that are no older than their kind of delay makes them.

    `age`: rounds between the anchor that a contribution started from and the round it takes part in. Only IEEE
    products, so every peer gets the same number. Source: CGAD arXiv 2605.09126, in its simplest form: an update that
    is taken late is scaled down before the outer optimizer sees it (ALGORITHMS 4.2 hook 6, `correct`).
    """
    factor = 1.0
    for _ in range(age - age_expected):
        factor *= decay
    return factor
