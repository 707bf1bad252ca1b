"""Which segments of a round a site checks: drawn from a seed that only it knows, so no owner can tell where to lie."""

import hashlib
from collections.abc import Sequence
from typing import Final

SEED_BYTES: Final = 32
DRAWN_MAX: Final = 256
"""Segments checked in one round, whatever the fraction says: each is some requests to other sites."""
_UNITS: Final = 1 << 64


def drawn(seed: bytes, fraction: float, candidates: Sequence[int]) -> tuple[int, ...]:
    """A part of `candidates`, each with probability `fraction`, in an order that is random too.

    Of n candidates floor(fraction n) or one more are drawn, so the work of a round hardly varies, and a lie in one
    segment stays undetected by one site over k rounds with probability (1 - fraction)^k.
    """
    exact = fraction * len(candidates)
    number = int(exact) + (_number(seed, b"rest") < (exact - int(exact)) * _UNITS)
    ranked = sorted(candidates, key=lambda segment: _number(seed, str(segment).encode("ascii")))
    return tuple(ranked[: min(number, DRAWN_MAX)])


def others_segments(owners: Sequence[str], me: str, num_segments: int) -> tuple[int, ...]:
    """Segments that somebody else reduced; all of them if nobody remembers who did (`owners` empty)."""
    return tuple(s for s in range(num_segments) if not owners or owners[s] != me)


def _number(seed: bytes, what: bytes) -> int:
    return int.from_bytes(hashlib.sha256(seed + b"\0" + what).digest()[:8], "big")
