"""The real transforms, wire codecs, reduction and Nesterov step on vectors of 64 values per segment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.errors import WireError
from dilocoxd.ids import Digest
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.outer.clipping import ClipRule
from dilocoxd.outer.optimizers import Nesterov
from dilocoxd.outer.passes import SegmentPass, encode_pass, reduce_pass, weigh_pass
from dilocoxd.outer.rounding import mean_weights
from dilocoxd.wire.layout import Layout, ParamSpec, Segment
from tests.simulation.peer.arithmetic import Summand, Sums
from tests.simulation.peer.disk import Payload, sha

SIDE = 8
CLIP_KAPPA = 1.0
"""So low that most rounds clip somebody."""


@dataclass(frozen=True)
class _State:
    anchor: Tensor
    momentum: Tensor
    transform: Transform


class RealSums(Sums):
    """`name`: a wire codec, or "lowrank" for two passes of factors. States are kept by digest, for rollbacks."""

    def __init__(self, name: str, num_segments: int) -> None:
        numel = SIDE * SIDE
        params = tuple(ParamSpec(f"layers.{index}.weight", (SIDE, SIDE)) for index in range(num_segments))
        segments = tuple(Segment(index, index * numel, (index + 1) * numel) for index in range(num_segments))
        self._layout = Layout(params, segments)
        self._name = name
        self._optimizer = Nesterov(0.7, 0.9)
        self._d = [torch.zeros(numel) for _ in segments]
        self._states: dict[Digest, list[Payload]] = {}
        self._at: tuple[Digest, _State] | None = None
        self.table = self._transform().payload_table()
        self.shape = PayloadShape(len(self.table), tuple(sum(column) for column in zip(*self.table, strict=True)))
        self.genesis()

    def _transform(self) -> Transform:
        if self._name == "lowrank":
            return LowRank(self._layout, 2, codec_from_name("int8"))
        return NoTransform(self._layout, codec_from_name(self._name))

    def _first_state(self) -> _State:
        generator = torch.Generator().manual_seed(7)
        return _State(
            torch.randn(self._layout.numel, generator=generator), torch.zeros(self._layout.numel), self._transform()
        )

    def genesis(self) -> Digest:
        state = self._first_state()
        digest = _digest(state)
        self._states = {digest: []}
        self._at = (digest, state)
        return digest

    def _state(self, digest: Digest) -> _State:
        """The state with this digest: the current one, or replayed from genesis after a rollback."""
        if self._at is None or self._at[0] != digest:
            state = self._first_state()
            for payload in self._states[digest]:
                state = self._step(state, payload)
            assert _digest(state) == digest, "replay gives other bits"
            self._at = (digest, state)
        return self._at[1]

    def _step(self, state: _State, payload: Payload) -> _State:
        after = _State(state.anchor.clone(), state.momentum.clone(), state.transform)
        passes = range(state.transform.num_passes)
        for segment in self._layout.segments:
            results = [payload[index, segment.index] for index in passes]
            delta = torch.zeros(segment.numel)
            state.transform.expand(segment, results[-1], results[:-1], delta)
            here = slice(segment.start, segment.stop)
            self._optimizer.step_(after.anchor[here], [after.momentum[here]], delta, 0)
        for segment in self._layout.segments:
            state.transform.learn(segment, [payload[index, segment.index] for index in passes])
        return after

    def first_payload(self, segment: int, rng: random.Random) -> bytes:
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        self._d[segment] = torch.randn(SIDE * SIDE, generator=generator)
        return self._encode(0, segment, ())

    def next_payload(self, pass_index: int, segment: int, results: Sequence[bytes], first: bytes) -> bytes:
        try:
            return self._encode(pass_index, segment, results)
        except WireError as error:
            raise ValueError(str(error)) from error

    def _encode(self, pass_index: int, segment: int, results: Sequence[bytes]) -> bytes:
        assert self._at is not None
        at = SegmentPass(self._at[1].transform, pass_index, self._layout.segments[segment], tuple(results))
        out = bytearray(at.payload_bytes)
        encode_pass(at, self._d[segment], out)
        return bytes(out)

    def reduced(self, place: tuple[int, int], shares: Sequence[Summand], results: Sequence[bytes]) -> bytes:
        assert self._at is not None
        at = SegmentPass(self._at[1].transform, place[0], self._layout.segments[place[1]], tuple(results))
        out = bytearray(at.payload_bytes)
        payloads = [data for data, *_ in shares]
        weights = mean_weights([tokens for _, tokens, _ in shares], (), [ramp for *_, ramp in shares])
        weighing, _ = weigh_pass(at, payloads, weights, ClipRule(CLIP_KAPPA))
        reduce_pass(at, payloads, weighing, None, out)
        return bytes(out)

    def bad_segment(self, results: Payload) -> int | None:
        assert self._at is not None
        transform = self._at[1].transform
        for segment in self._layout.segments:
            passes = [results[index, segment.index] for index in range(transform.num_passes)]
            try:
                transform.expand(segment, passes[-1], passes[:-1], torch.zeros(segment.numel))
            except WireError:
                return segment.index
        return None

    def applied(self, state_digest: Digest, payload: Payload) -> Digest:
        before = self._state(state_digest)
        self._at = None  # the warm start of low rank moves on in place
        try:
            after = self._step(before, payload)
        except WireError as error:
            self._state(state_digest)  # what is refused leaves no trace
            raise ValueError(str(error)) from error
        digest = _digest(after)
        self._at = (digest, after)
        self._states[digest] = [*self._states[state_digest], dict(payload)]
        return digest


def _digest(state: _State) -> Digest:
    return sha(state.anchor.numpy().tobytes() + state.momentum.numpy().tobytes())
