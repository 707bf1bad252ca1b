"""Transforms: how one segment of d = u + e travels in one or more passes of the exchange.

In pass p every site encodes `project(p, segment, d, results)`, a vector that may depend on the results of the passes
before; the owner takes the mean of the vectors, `finish_mean_` gives it its last form, and the encoded result goes to
all. After the last pass `expand` turns its payload into values of the segment. `expand` is linear in that payload's
vector, so the mean of the sites' own contributions is the expansion of the mean vector, exactly as far as fp32 goes.

    identity   1 pass:  the values themselves
    low rank   2 passes: P factors, then R factors and all that has no factors (compress/lowrank.py)

`payload_table()` is all that a process without tensors needs to know: [pass][segment] -> bytes, the same for a
contribution and for the result. Source: docs/internals.md; ALGORITHMS 1.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload
from dilocoxd.wire.layout import Layout, Segment


class Transform(ABC):
    """One configured way of compressing the segments of one layout."""

    num_passes: int
    has_memory: bool = False
    """The next round starts from the last pass's results (`recall`)."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def tune(self, round_index: int, lowrank_r: int) -> None:  # noqa: B027 - most transforms do not depend on either
        """Use what the shared state says for its next entry: number of the round, low rank. The same at all peers."""

    def payload_bytes(self, pass_index: int, segment: Segment) -> int:
        """Exact length of the payload of `segment` in one pass."""
        return self.codec(pass_index, segment).payload_bytes(self.vector_numel(pass_index, segment))

    def payload_table(self) -> tuple[tuple[int, ...], ...]:
        """[pass][segment] -> bytes."""
        return tuple(
            tuple(self.payload_bytes(index, segment) for segment in self.layout.segments)
            for index in range(self.num_passes)
        )

    @abstractmethod
    def codec(self, pass_index: int, segment: Segment) -> Codec:
        """The byte format of the vector of one pass."""

    @abstractmethod
    def vector_numel(self, pass_index: int, segment: Segment) -> int:
        """Length of the vector of one pass; 0: this segment sends a filler only."""

    @abstractmethod
    def project(self, pass_index: int, segment: Segment, d: Tensor, results: Sequence[Payload]) -> Tensor:
        """The vector a site offers for d = float32[segment.numel]; may be `d` itself, which stays as it is.

        `results`: encoded results of the earlier passes of this segment. Raises WireError if they are hostile.
        """

    def finish_mean_(
        self, pass_index: int, segment: Segment, mean: Tensor, residual: Tensor | None, results: Sequence[Payload]
    ) -> None:
        """Owner: add what it kept (`residual`, float32[segment.numel]) to the mean vector and give it its last form."""
        if residual is not None:
            mean.add_(self.project(pass_index, segment, residual, results))

    @abstractmethod
    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        """out <- the values that a vector of the last pass stands for, given the results of the passes before."""

    def expand(self, segment: Segment, last: Payload, results: Sequence[Payload], out: Tensor) -> None:
        """out <- the values that a payload of the last pass stands for. Raises WireError."""
        final = self.num_passes - 1
        vector = torch.empty(self.vector_numel(final, segment))
        self.codec(final, segment).decode(last, vector)
        self.expand_vector(segment, vector, results, out)

    def subtract_expanded_(self, segment: Segment, last: Payload, results: Sequence[Payload], target: Tensor) -> None:
        """target <- target - expand(last)."""
        own = torch.empty_like(target)
        self.expand(segment, last, results, own)
        target.sub_(own)

    def add_expanded_(self, segment: Segment, last: Payload, results: Sequence[Payload], target: Tensor) -> None:
        """target <- target + expand(last)."""
        own = torch.empty_like(target)
        self.expand(segment, last, results, own)
        target.add_(own)

    def touched(self, segment: Segment) -> slice:
        """Elements of the segment that this round's result moves; the outer step leaves all others as they are."""
        return slice(0, segment.numel)

    def steps_before(self, round_index: int) -> int:
        """Outer steps that these elements have had when `round_index` entries have been applied."""
        return round_index

    def learn(self, segment: Segment, results: Sequence[Payload]) -> None:
        """The results of all passes of `segment` committed: update what the next round starts from (warm start)."""
        self.recall(segment, results[-1])

    def recall(self, segment: Segment, last: Payload) -> None:  # noqa: B027 - most transforms keep nothing
        """Learn from the result of the last pass alone, encoded with the low rank that `tune` set."""


class OnePass(Transform):
    """Values of the segment, all or some of them, in one wire codec; which ones may depend on the round."""

    num_passes = 1

    def __init__(self, layout: Layout, codec: Codec) -> None:
        super().__init__(layout)
        self._codec = codec
        self._round = 0

    def tune(self, round_index: int, lowrank_r: int) -> None:
        self._round = round_index

    def codec(self, pass_index: int, segment: Segment) -> Codec:
        return self._codec


class NoTransform(OnePass):
    """All values of the segment."""

    def vector_numel(self, pass_index: int, segment: Segment) -> int:
        return segment.numel

    def project(self, pass_index: int, segment: Segment, d: Tensor, results: Sequence[Payload]) -> Tensor:
        return d

    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        out.copy_(vector)

    def expand(self, segment: Segment, last: Payload, results: Sequence[Payload], out: Tensor) -> None:
        self._codec.decode(last, out)

    def subtract_expanded_(self, segment: Segment, last: Payload, results: Sequence[Payload], target: Tensor) -> None:
        subtract_decoded_(self._codec, last, target)

    def add_expanded_(self, segment: Segment, last: Payload, results: Sequence[Payload], target: Tensor) -> None:
        add_decoded_(self._codec, last, target)


def subtract_decoded_(codec: Codec, payload: Payload, target: Tensor) -> None:
    """target <- target - decode(payload), chunk by chunk in the cache."""
    _add_decoded_(codec, payload, target, -1.0)


def add_decoded_(codec: Codec, payload: Payload, target: Tensor) -> None:
    """target <- target + decode(payload), chunk by chunk in the cache."""
    _add_decoded_(codec, payload, target, 1.0)


def _add_decoded_(codec: Codec, payload: Payload, target: Tensor, factor: float) -> None:
    source = codec.checked_payload(payload, target.numel())
    for start, stop in codec.chunks(target.numel()):
        codec.add_chunk_(source, start, target.numel(), target[start:stop], factor)
