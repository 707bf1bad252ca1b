"""What the outer worker computes: a tiny stand-in, or the real transforms, codecs and outer step on tiny vectors.

Both give bytes that depend on every input bit and on the order of summation, and a state digest that depends on every
byte applied before. The real one is slower and only some schedules use it.
"""

from __future__ import annotations

import hashlib
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dilocoxd.ids import Digest
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.outer.rounding import capped_tokens
from tests.simulation.peer.disk import GENESIS_DIGEST, Payload, sha

Summand = tuple[bytes, int, int]
"""Payload, tokens, part of the weight in 64ths (M11)."""
REAL_CODECS = ("int4", "int8", "bf16", "int2", "e3m0", "topk", "lowrank")


class Sums(ABC):
    """Arithmetic of one site. Everything but `first_payload` is a function of bytes that all peers have."""

    shape: PayloadShape
    table: tuple[tuple[int, ...], ...]
    """Payload bytes, [pass][segment]."""
    is_exact = False
    """Results are the plain weighted mean of the contributions (`weighted_mean`)."""

    @abstractmethod
    def genesis(self) -> Digest:
        """Forget all states but the one before the first entry."""

    @abstractmethod
    def first_payload(self, segment: int, rng: random.Random) -> bytes:
        """Form the contribution of a new phase."""

    @abstractmethod
    def next_payload(self, pass_index: int, segment: int, results: Sequence[bytes], first: bytes) -> bytes:
        """What this site offers in a later pass, given the results of the passes before and its first payload.

        Raises ValueError if those results do not decode.
        """

    @abstractmethod
    def reduced(self, place: tuple[int, int], shares: Sequence[Summand], results: Sequence[bytes]) -> bytes:
        """Weighted mean of the shares in the given order."""

    def bad_segment(self, results: Payload) -> int | None:
        """The first segment whose results do not decode."""
        return None

    @abstractmethod
    def applied(self, state_digest: Digest, payload: Payload) -> Digest:
        """Digest of the next state. Raises ValueError if the payload does not decode."""


class ToySums(Sums):
    """Two float64 values per segment."""

    def __init__(self, num_passes: int, num_segments: int) -> None:
        self.shape = PayloadShape(num_passes, (100,) * num_segments)
        self.table = ((16,) * num_segments,) * num_passes
        self.is_exact = num_passes == 1

    def genesis(self) -> Digest:
        return GENESIS_DIGEST

    def first_payload(self, segment: int, rng: random.Random) -> bytes:
        return encode([rng.uniform(-1, 1), rng.uniform(-1, 1)])

    def next_payload(self, pass_index: int, segment: int, results: Sequence[bytes], first: bytes) -> bytes:
        return encode([b / 7 for b in hashlib.sha256(first + results[-1]).digest()[:2]])

    def reduced(self, place: tuple[int, int], shares: Sequence[Summand], results: Sequence[bytes]) -> bytes:
        return weighted_mean(shares)

    def applied(self, state_digest: Digest, payload: Payload) -> Digest:
        if any(len(data) != 16 for data in payload.values()):
            raise ValueError("does not decode")
        return sha(state_digest + b"".join(data for _, data in sorted(payload.items())))


def encode(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def weighted_mean(payloads: Sequence[Summand]) -> bytes:
    """Sum in the given order with capped weights (X2.5), then divide: floating point, so that another order gives other
    bits."""
    count = len(payloads[0][0]) // 8
    sums = [0.0] * count
    weights = capped_tokens([tokens for _, tokens, _ in payloads], [ramp for *_, ramp in payloads])
    for (data, *_), weight in zip(payloads, weights, strict=True):
        for index, value in enumerate(struct.unpack(f"<{count}d", data)):
            sums[index] += value * weight
    return encode([value / sum(weights) for value in sums])


def make_sums(kind: tuple[Any, ...]) -> Sums:
    """("toy", passes, segments) or ("real", codec, segments)."""
    if kind[0] == "toy":
        return ToySums(kind[1], kind[2])
    from tests.simulation.peer.real_arithmetic import (
        RealSums,  # torch takes seconds to load, and most schedules do without
    )

    return RealSums(kind[1], kind[2])
