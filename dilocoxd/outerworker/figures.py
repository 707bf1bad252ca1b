"""Writes FIGURES: squares and hashes of the segments that this process holds (wire/local/figures.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import chunks
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local.figures import FIGURES_BYTES, SegmentFigures, decode_figures, encode_figures, norms_of
from dilocoxd.wire.state_digest import Leaf

PIECE = 1 << 16
"""Values that are squared at a time: few enough for float32 sums, and for the cache."""


class FiguresTable:
    """The buffer as a table. A record is written before the journal says that its step is done."""

    def __init__(self, window: memoryview) -> None:
        self._window = window

    def _place(self, segment: Segment) -> slice:
        return slice(FIGURES_BYTES * segment.index, FIGURES_BYTES * (segment.index + 1))

    def of(self, segment: Segment) -> SegmentFigures:
        (found,) = decode_figures(self._window[self._place(segment)])
        return found

    def note_squares(self, segment: Segment, norm_square: float, residual_square: float) -> None:
        """Of the contribution that is being formed."""
        changed = self.of(segment)._replace(norm_square=norm_square, residual_square=residual_square)
        self._window[self._place(segment)] = encode_figures(changed)

    def note_leaf(self, segment: Segment, leaf: Leaf) -> Leaf:
        """Of the state that is being made; returns `leaf`."""
        self._window[self._place(segment)] = encode_figures(self.of(segment)._replace(leaf=leaf))
        return leaf

    def records(self, segments: Sequence[Segment]) -> bytes:
        """As several parts send them."""
        return b"".join(self._window[self._place(segment)] for segment in segments)

    def norms(self, segments: Sequence[Segment]) -> tuple[float, float]:
        """Norms of d and of its rest over these segments."""
        return norms_of([self.of(segment) for segment in segments])


def square_of(values: Tensor) -> float:
    """Sum of squares of values up to 2**49 in magnitude: float32 sums of pieces of fixed length, added in float64, so
    that the same values always give the same bits. For eyes and alarms, not for the state."""
    return sum(_square(values[start:stop]) for start, stop in chunks(values.numel(), PIECE))


def square_of_difference(left: Tensor, right: Tensor) -> float:
    """`square_of` what float32 subtraction leaves, without room for all of it."""
    pieces = chunks(left.numel(), PIECE)
    return sum(_square(torch.sub(left[start:stop], right[start:stop])) for start, stop in pieces)


def _square(piece: Tensor) -> float:
    return float(torch.dot(piece, piece))
