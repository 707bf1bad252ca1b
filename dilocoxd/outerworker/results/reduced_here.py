"""What of a committed attempt this site reduced: settling needs it, for what it owes as owner and what all lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dilocoxd.outer.rounding import capped_tokens, fp32
from dilocoxd.wire.local.outer_worker import OwnedSegment, Share


@dataclass(frozen=True, slots=True)
class ReducedHere:
    """What this site reduced in the committed attempt, and its own weight in the mean (0: it reduced nothing)."""

    segments: frozenset[int]
    weight: float
    shares: Mapping[int, tuple[Share, ...]]
    """By segment, of the last pass."""

    @classmethod
    def of(cls, owned: Sequence[OwnedSegment], last_pass: int) -> ReducedHere:
        by_segment = {item.segment: item.shares for item in owned if item.pass_index == last_pass}
        segments = frozenset(by_segment)
        if not segments:
            return cls(segments, 0.0, by_segment)
        shares = owned[0].shares
        weights = capped_tokens([share.tokens for share in shares], [share.ramp for share in shares])
        own = sum(weight for share, weight in zip(shares, weights, strict=True) if share.slot < 0)
        return cls(segments, fp32(own / sum(weights)), by_segment)
