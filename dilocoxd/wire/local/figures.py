"""What the outer worker notes of each segment in buffer FIGURES, so that parts that hold some of them add up exactly.

Several parts send the records of their segments with their answers: the buffer itself is nobody else's affair.

Hashes make the digests of the state (wire/state_digest.py); squares, added in the order of the segments, make norms
with the same bits however many parts there are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from dilocoxd.wire.codec import Length
from dilocoxd.wire.limits import SEGMENTS_MAX
from dilocoxd.wire.state_digest import Leaf

_RECORD: Final = struct.Struct("<dd32s32s")
FIGURES_BYTES: Final = _RECORD.size
"""Of one segment; that of segment s begins at s times as much."""
Figures = Annotated[bytes, Length(0, SEGMENTS_MAX * FIGURES_BYTES)]
"""Records back to back."""


class SegmentFigures(NamedTuple):
    """Of one segment: sum of squares of d and of what is left when the payload is taken off; hashes of the state."""

    norm_square: float
    residual_square: float
    leaf: Leaf


def encode_figures(figures: SegmentFigures) -> bytes:
    return _RECORD.pack(figures.norm_square, figures.residual_square, *figures.leaf)


def decode_figures(data: bytes | memoryview) -> list[SegmentFigures]:
    """Of all segments whose records `data` holds."""
    return [
        SegmentFigures(norm, residual, Leaf(anchor, whole))
        for norm, residual, anchor, whole in _RECORD.iter_unpack(data)
    ]


def norms_of(figures: Sequence[SegmentFigures]) -> tuple[float, float]:
    """Norms of d and of its rest over these segments."""
    norm = residual = 0.0
    for each in figures:  # one by one: the order of an addition is part of its bits
        norm += each.norm_square
        residual += each.residual_square
    return math.sqrt(norm), math.sqrt(residual)
