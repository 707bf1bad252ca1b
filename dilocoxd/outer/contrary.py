"""Whose share of a segment points against those of the others: it is not counted, for no clipping makes it harmless.

    q_i = trunc(clamp(3 c_i / rms(c_i), -15, 15))        whole numbers, so that sums of products are exact
    t_i = median over j of cos(q_i, q_j)                 contrary: t_i < -max(r / 2, 3 / sqrt(n)), r = lower median of t
A flipped share has the cosine -r with the honest ones, whatever r is: the limit lies half-way, and never within the
noise of n elements. As many as half of the group cannot be contrary: then nobody is. Two have no majority. The products
are sums of whole numbers below 2**24, hence the same in fp32 in any order, on every machine.
Sources: cosine gate of design paper TRUST (c); protocol/08-compression.md, C9; docs/adr/0015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_high
from typing import Final

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload
from dilocoxd.outer.rounding import fp32

CODE_MAX: Final = 15
CODES_PER_RMS: Final = 3.0
BLOCK: Final = 1 << 16
"""Elements whose products are added in fp32: 15 * 15 * 2**16 is below 2**24."""
NOISE: Final = 3.0
"""Standard deviations of the cosine of unrelated shares."""
SCALE_MAX: Final = 2.0**96
MEMBERS_MIN: Final = 3


def contrary_shares(codec: Codec, shares: Sequence[Payload], norms: Sequence[float], numel: int) -> frozenset[int]:
    """Positions of the contrary ones among sound shares of `numel` elements with these norms (around 0)."""
    if len(shares) < MEMBERS_MIN or not numel:
        return frozenset()
    return contrary_of(typical_cosines(products(codec, shares, norms, numel)), numel)


def contrary_of(typical: Sequence[float], numel: int) -> frozenset[int]:
    """Positions of those whose typical cosine is below the limit; empty if they are half of the group or more."""
    agreement = sorted(typical)[(len(typical) - 1) // 2]
    limit = -max(agreement * 0.5, NOISE / math.sqrt(numel))
    found = frozenset(place for place, cosine in enumerate(typical) if cosine < limit)
    return found if 2 * len(found) < len(typical) else frozenset()


def typical_cosines(products: Sequence[Sequence[float]]) -> list[float]:
    """Of each: the median of its cosines with all others (of two middle ones the larger); zeros are neutral."""
    squares = [products[place][place] for place in range(len(products))]

    def cosine(a: int, b: int) -> float:
        return products[a][b] / math.sqrt(squares[a] * squares[b]) if squares[a] and squares[b] else 0.0

    places = range(len(products))
    return [median_high(cosine(place, other) for other in places if other != place) for place in places]


def products(codec: Codec, shares: Sequence[Payload], norms: Sequence[float], numel: int) -> list[list[float]]:
    """q_i * q_j of every two, exact."""
    scales = [fp32(min(CODES_PER_RMS * math.sqrt(numel) / norm, SCALE_MAX)) if norm else 0.0 for norm in norms]
    sources = [codec.checked_payload(share, numel) for share in shares]
    total = torch.zeros(len(shares), len(shares), dtype=torch.float64)
    for start, stop in codec.chunks(numel):
        codes = torch.empty(len(shares), stop - start, dtype=torch.int8)
        values = torch.empty(stop - start)
        for place, source in enumerate(sources):
            codec.decode_chunk(source, start, numel, values)
            codes[place] = _codes_(values, scales[place])
        for first in range(0, stop - start, BLOCK):
            whole = codes[:, first : first + BLOCK].float()
            total += whole @ whole.T
    return [[float(value) for value in row] for row in total.tolist()]


def _codes_(values: Tensor, scale: float) -> Tensor:
    """What becomes whole numbers as int8, which drops fractions; one fp32 product each. Overwrites `values`."""
    return values.mul_(scale).clamp_(-CODE_MAX, CODE_MAX)
