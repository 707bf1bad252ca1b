"""A transform whose vectors depend on the shared state, encoded only when the exchange has begun.

Pass 0 announces: one zero byte per segment. Passes 1, 2, ... are those of the inner transform. A contribution stays
offered until a round takes it; what it is encoded with (warm start, low rank, mask of the round) is that of this round
and not of the one it was formed for, so all contributions of a round fit together and a late one is as exact as any.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload
from dilocoxd.compress.columns import PartsCodec
from dilocoxd.compress.transform import Transform
from dilocoxd.wire.layout import Segment

_ANNOUNCEMENT = PartsCodec(())


class Deferred(Transform):
    """`inner` one pass later."""

    def __init__(self, inner: Transform) -> None:
        super().__init__(inner.layout)
        self.inner = inner
        self.num_passes = inner.num_passes + 1
        self.has_memory = inner.has_memory

    def tune(self, round_index: int, lowrank_r: int) -> None:
        self.inner.tune(round_index, lowrank_r)

    def codec(self, pass_index: int, segment: Segment) -> Codec:
        return self.inner.codec(pass_index - 1, segment) if pass_index else _ANNOUNCEMENT

    def vector_numel(self, pass_index: int, segment: Segment) -> int:
        return self.inner.vector_numel(pass_index - 1, segment) if pass_index else 0

    def project(self, pass_index: int, segment: Segment, d: Tensor, results: Sequence[Payload]) -> Tensor:
        return self.inner.project(pass_index - 1, segment, d, results[1:]) if pass_index else torch.empty(0)

    def finish_mean_(
        self, pass_index: int, segment: Segment, mean: Tensor, residual: Tensor | None, results: Sequence[Payload]
    ) -> None:
        if pass_index:
            self.inner.finish_mean_(pass_index - 1, segment, mean, residual, results[1:])

    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        self.inner.expand_vector(segment, vector, results[1:], out)

    def expand(self, segment: Segment, last: Payload, results: Sequence[Payload], out: Tensor) -> None:
        self.inner.expand(segment, last, results[1:], out)

    def touched(self, segment: Segment) -> slice:
        return self.inner.touched(segment)

    def steps_before(self, round_index: int) -> int:
        return self.inner.steps_before(round_index)

    def learn(self, segment: Segment, results: Sequence[Payload]) -> None:
        self.inner.learn(segment, results[1:])

    def recall(self, segment: Segment, last: Payload) -> None:
        self.inner.recall(segment, last)
