"""Random mask by shared seed: of every `keep_one_in` consecutive values one is sent, the same one at all sites.

No positions travel. The choice is a hash of (seed, round, position of the group) in integer arithmetic, so all machines
agree; the values go through an ordinary codec. What is not sent stays in the error feedback. Source: CocktailSGD
(ALGORITHMS 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload
from dilocoxd.compress.transform import OnePass
from dilocoxd.errors import ConfigError
from dilocoxd.wire.layout import Layout, Segment

MASK_31 = (1 << 31) - 1


class RandomMask(OnePass):
    """`tune` before each round, with the same number at all peers."""

    def __init__(self, layout: Layout, codec: Codec, keep_one_in: int, seed: int = 0) -> None:
        super().__init__(layout, codec)
        if not 1 <= keep_one_in <= 4096:
            raise ConfigError(f"keep_one_in is {keep_one_in}; use 1 (all) to 4096")
        self._group = keep_one_in
        self._seed = seed

    def vector_numel(self, pass_index: int, segment: Segment) -> int:
        return -(-segment.numel // self._group)

    def project(self, pass_index: int, segment: Segment, d: Tensor, results: Sequence[Payload]) -> Tensor:
        return d[self.positions(segment)]

    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        out.zero_()
        out[self.positions(segment)] = vector

    def positions(self, segment: Segment) -> Tensor:
        """int64 positions in the segment that this round sends, ascending, one per group."""
        groups = torch.arange(self.vector_numel(0, segment), dtype=torch.int64)
        mixed = (groups + segment.start // self._group * 7919) & MASK_31
        for salt in (self._seed & MASK_31, self._round & MASK_31):
            mixed = ((mixed ^ salt) * 1103515245 + 12345) & MASK_31
            mixed = mixed ^ (mixed >> 15)
        first = groups * self._group
        sizes = (segment.numel - first).clamp_(max=self._group)
        return first + (mixed >> 4) % sizes
