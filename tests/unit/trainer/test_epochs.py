"""The order of exact epochs: every window once an epoch, shares by weight, the same without history on any rank."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dilocoxd.config.sections.sources import pick_counts, weight_min
from dilocoxd.trainer.data.epochs import PATTERN, EpochOrder, SourceSize, permuted, pick_pattern


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), key=st.text(max_size=5))
def test_permutation_has_each_number_once(size: int, key: str) -> None:
    found = permuted(np.arange(size), size, key)
    assert np.array_equal(np.sort(found), np.arange(size))


def test_permutation_is_pinned() -> None:
    # Another order would read other text than a run's chain says.
    assert permuted(np.arange(5), 1000, "7/books/0").tolist() == [742, 598, 741, 461, 949]
    assert permuted(np.arange(5), 10**12, "7/books/0").tolist() != permuted(np.arange(5), 10**12, "7/books/1").tolist()


def test_order_of_stores_of_any_size_is_pinned() -> None:
    """On both sides of a power of four, where few and where most samples walk on; many at a time and one alone."""
    digest = hashlib.sha256()
    for size in (1, 2, 5, 4**6, 4**6 + 1, 33_554_431, 10**12):
        samples = np.arange(min(size, 500)) * max(1, size // 500) % size
        for key in ("7/books/0", "7/books/1"):
            found = permuted(samples, size, key)
            digest.update(found.astype("<i8").tobytes())
            assert [int(permuted(samples[k : k + 1], size, key)[0]) for k in range(min(size, 20))] == found[
                :20
            ].tolist()
    assert digest.hexdigest() == "d0d87d6b54d79115d48a26d005daf2704a6994d37f7b220e2c6c5dfc438c27c2"
    located = np.stack(order().locate(np.arange(6000))).astype("<i8").tobytes()
    assert hashlib.sha256(located).hexdigest() == "c5d1caf8a49fad3a8c22417ea62daa87da8cf904c09b469a6695d60dc131534b"


def order() -> EpochOrder:
    return EpochOrder([SourceSize("books", 3.0, 500), SourceSize("code", 1.0, 120)], seed=7)


def test_each_epoch_of_each_source_has_every_window_once_in_another_order() -> None:
    which, windows = order().locate(np.arange(6000))
    for number, size in enumerate((500, 120)):
        mine = windows[which == number]
        epochs = [mine[start : start + size] for start in range(0, len(mine) - size, size)]
        assert len(epochs) > 7
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        assert epochs[0].tolist() != epochs[1].tolist()
    assert abs((which == 0).mean() - 0.75) < 1 / PATTERN


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_order_is_the_same_without_history_on_any_number_of_ranks(num_ranks: int) -> None:
    whole = np.stack(order().locate(np.arange(4096)))
    parts = [np.stack(order().locate(np.arange(rank, 4096, num_ranks))) for rank in range(num_ranks)]
    again = np.empty_like(whole)
    for rank, part in enumerate(parts):
        again[:, rank::num_ranks] = part
    assert np.array_equal(again, whole)


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_are_the_weights_to_one_pick(weights: list[float]) -> None:
    counts = Counter(pick_pattern(weights).tolist())
    assert sum(counts.values()) == PATTERN
    for number, weight in enumerate(weights):
        assert abs(counts[number] - PATTERN * weight / sum(weights)) <= 1 + 1e-9


def test_pattern_is_pinned() -> None:
    # Every site of a run must draw the same.
    assert pick_counts([3.0, 1.0]) == [768, 256]
    assert pick_counts([1.0, 1.0, 1.0]) == [342, 341, 341]
    assert pick_counts([5000.0, 1.0, 2.0]) == [1023, 0, 1]


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.floats(1e-6, 1e15), min_size=1, max_size=40))
def test_source_that_is_raised_to_the_least_weight_is_read(weights: list[float]) -> None:
    least = weight_min(weights)
    assert all(pick_counts([max(weight, least) for weight in weights]))
