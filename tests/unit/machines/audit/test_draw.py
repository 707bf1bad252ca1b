"""Which segments are checked: as many as the fraction says, all equally likely, and the detection that follows."""

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from dilocoxd.machines.audit.draw import DRAWN_MAX, drawn, others_segments


@given(st.binary(min_size=32, max_size=32), st.floats(0.001, 1.0), st.integers(0, 400))
def test_number_follows_from_the_fraction(seed: bytes, fraction: float, count: int) -> None:
    found = drawn(seed, fraction, range(count))
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(count))
    exact = fraction * count
    assert int(exact) <= len(found) <= int(exact) + 1 or len(found) == DRAWN_MAX
    assert found == drawn(seed, fraction, range(count)), "the same seed gives the same"


def test_all_are_drawn_with_fraction_one() -> None:
    assert sorted(drawn(b"s" * 32, 1.0, range(100))) == list(range(100))


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 5), (0.1, 30), (0.25, 7)])
def test_each_segment_is_drawn_with_the_fraction_as_probability(fraction: float, count: int) -> None:
    """So a lie in one segment is missed over n rounds with probability (1 - f)^n by each site."""
    rng, rounds = random.Random(5), 20_000
    hits = Counter(segment for _ in range(rounds) for segment in drawn(rng.randbytes(32), fraction, range(count)))
    for segment in range(count):
        assert abs(hits[segment] / rounds - fraction) < 5 * (fraction * (1 - fraction) / rounds) ** 0.5


@pytest.mark.parametrize("rounds", [1, 7, 22])
def test_detection_is_what_the_formula_says(rounds: int) -> None:
    """One segment of 12 is false in every round, f = 0.1: 1 - (1 - f)^n."""
    rng, runs = random.Random(rounds), 4000
    found = sum(any(5 in drawn(rng.randbytes(32), 0.1, range(12)) for _ in range(rounds)) for _ in range(runs))
    expected = 1 - 0.9**rounds
    assert abs(found / runs - expected) < 5 * (expected * (1 - expected) / runs) ** 0.5


def test_own_segments_are_not_checked() -> None:
    assert others_segments(("a", "b", "a", "c"), "a", 4) == (1, 3)
    assert others_segments((), "a", 3) == (0, 1, 2), "nobody remembers who owned them"
