"""Fragments in turn: round k exchanges stretch k mod F of every segment; the rest of the parameters waits its turn.

A fragment is a stretch of each segment rather than some whole segments, so that every round has the same bytes and
every owner the same work; the payloads of all rounds are equally long (the last stretch is filled up with zeros). What
is not sent is no error: it stays in the sites' parameters (trainer/parameters/mixing.py). Source: Streaming DiLoCo,
arXiv 2501.18512 (ALGORITHMS 2.1); the cut is this project's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload
from dilocoxd.compress.transform import OnePass
from dilocoxd.errors import ConfigError
from dilocoxd.wire.layout import Layout, Segment


class Fragments(OnePass):
    """`tune` before each round, with the same number at all peers."""

    def __init__(self, layout: Layout, codec: Codec, num_fragments: int) -> None:
        super().__init__(layout, codec)
        if not 1 <= num_fragments <= 1024:
            raise ConfigError(f"the number of fragments is {num_fragments}; use 1 to 1024")
        self.num_fragments = num_fragments

    def vector_numel(self, pass_index: int, segment: Segment) -> int:
        return -(-segment.numel // self.num_fragments)

    def touched(self, segment: Segment) -> slice:
        return stretch(segment, self.num_fragments, self._round)

    def steps_before(self, round_index: int) -> int:
        return round_index // self.num_fragments

    def project(self, pass_index: int, segment: Segment, d: Tensor, results: Sequence[Payload]) -> Tensor:
        vector = torch.zeros(self.vector_numel(pass_index, segment))
        sent = d[self.touched(segment)]
        vector[: sent.numel()] = sent
        return vector

    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        out.zero_()
        sent = out[self.touched(segment)]
        sent.copy_(vector[: sent.numel()])


def stretch(segment: Segment, num_fragments: int, round_index: int) -> slice:
    """The part of a segment that a round exchanges; may be empty."""
    length = -(-segment.numel // num_fragments)
    first = min(segment.numel, round_index % num_fragments * length)
    return slice(first, min(segment.numel, first + length))
