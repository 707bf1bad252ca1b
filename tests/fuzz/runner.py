"""Feeds one decoder with good bytes, good bytes damaged in every usual way, and bytes that were never good.

An input is a failure when the decoder raises anything but its typed errors, or takes more than a second of CPU; a
target fails as a whole when the process grew by more than 200 MiB over it. hypothesis shrinks what it shows.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from tests.fuzz.targets import ALLOWED, Target

CPU_MAX_S = 1.0
GROWTH_MAX_MIB = 200
BATCH = 200
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xC0, 0xC4, 0xDC, 0xDD, 0xDF)


@dataclass
class Tally:
    """What one target was given and what it answered."""

    num_inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problem: str = ""
    growth_mib: float = 0.0


@st.composite
def damaged(draw: st.DrawFn, corpus: tuple[bytes, ...]) -> bytes:
    """A member of the corpus with up to six changes."""
    data = bytearray(draw(st.sampled_from(corpus)))
    for _ in range(draw(st.integers(0, 6))):
        where = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(("flip", "set", "cut", "insert", "drop", "repeat", "splice"))):
            case "flip" if data:
                data[where] ^= 1 << draw(st.integers(0, 7))
            case "set" if data:
                data[where] = draw(st.sampled_from(INTERESTING))
            case "cut":
                del data[where:]
            case "insert":
                data[where:where] = draw(st.binary(max_size=12))
            case "drop":
                del data[where : where + draw(st.integers(1, 40))]
            case "repeat":
                data[where:where] = data[where : where + draw(st.integers(1, 40))] * draw(st.integers(1, 4))
            case "splice":
                other = draw(st.sampled_from(corpus))
                start = draw(st.integers(0, len(other)))
                data[where:] = other[start:]
    return bytes(data)


def inputs(corpus: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    return st.one_of(damaged(corpus), damaged(corpus), st.binary(max_size=400))


def fuzz(target: Target, seconds: float, first_seed: int) -> Tally:
    """Batches of inputs until the time is over or one fails."""
    tally = Tally()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends_at, number = time.monotonic() + seconds, first_seed
    while not tally.problem and (time.monotonic() < ends_at or not tally.num_inputs):
        _batch(target, tally, number)
        number += 1
    tally.growth_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if tally.growth_mib > GROWTH_MAX_MIB and not tally.problem:
        tally.problem = f"memory grew by {tally.growth_mib:.0f} MiB"
    return tally


def _batch(target: Target, tally: Tally, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=inputs(target.corpus))
    def one(data: bytes) -> None:
        tally.num_inputs += 1
        started = time.thread_time()
        try:
            target.decode(data)
            outcome = "accepted"
        except ALLOWED as error:
            outcome = str(getattr(error, "code", type(error).__name__))
        spent = time.thread_time() - started
        assert spent < CPU_MAX_S, f"{spent:.1f} s of CPU for {len(data)} bytes"
        tally.outcomes[outcome] += 1

    try:
        one()
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", []))[:2000]
        tally.problem = f"batch {number}: {type(error).__name__}: {error} {notes}"
