"""Who reduces which segment: in proportion to bandwidth, and the same segments as before when little has changed."""

import random

from dilocoxd.ids import PeerId
from dilocoxd.machines.exchange.owners import assign_owners, lasting_owners

SIZES = [1000] * 95 + [400]


def test_owners_are_stretches_in_proportion() -> None:
    owners = assign_owners(SIZES, [1_000_000, 2_000_000, 1_000_000])
    assert list(owners) == sorted(owners)
    assert abs(owners.count(0) - 24) <= 1
    assert abs(owners.count(1) - 48) <= 1
    assert len(owners) == len(SIZES)


def test_two_share_equally_whatever_their_links_are() -> None:
    owners = assign_owners(SIZES, [1_000_000, 900_000_000])
    assert abs(owners.count(0) - owners.count(1)) <= 1


def test_nobody_owns_more_than_three_quarters() -> None:
    owners = assign_owners(SIZES, [1_000, 900_000_000, 1_000, 1_000])
    assert abs(owners.count(1) - 72) <= 1
    assert set(owners) == {0, 1, 2, 3}


def test_unknown_bandwidth_counts_as_the_mean() -> None:
    owners = assign_owners(SIZES, [0, 2_000_000, 4_000_000])
    assert abs(owners.count(0) - 32) <= 1
    assert set(assign_owners(SIZES, [0, 0, 0])) == {0, 1, 2}


def test_small_changes_of_bandwidth_move_only_the_ends() -> None:
    rng = random.Random(1)
    ever: dict[int, set[int]] = {segment: set() for segment in range(len(SIZES))}
    for _ in range(200):
        owners = assign_owners(SIZES, [rng.randint(950_000, 1_050_000) for _ in range(3)])
        for segment, owner in enumerate(owners):
            ever[segment].add(owner)
    moved = sum(len(owners) > 1 for owners in ever.values())
    assert moved <= 12, ever


def test_owners_of_the_attempt_before_stay() -> None:
    before = [0, None, 1, None] * 24
    owners = assign_owners(SIZES, [1, 1], before)
    assert all(old in (None, new) for old, new in zip(before, owners, strict=True))
    assert abs(owners.count(0) - owners.count(1)) <= 2


def test_more_contributors_than_segments() -> None:
    owners = assign_owners([10], [5, 5, 5])
    assert len(owners) == 1
    assert 0 <= owners[0] < 3


def test_owners_of_the_round_before_stay_while_they_are_fair_enough() -> None:
    a, b, c = PeerId("Qma"), PeerId("Qmb"), PeerId("Qmc")
    before = [a, b] * 48
    assert lasting_owners(before, [a, b], SIZES, [1_000_000, 1_900_000]) == tuple([0, 1] * 48)
    assert lasting_owners(before, [a, b], SIZES, [0, 0]) == tuple([0, 1] * 48)
    assert lasting_owners([a, b, c] * 32, [a, b, c], SIZES, [1_000_000, 1_900_000, 1_000_000]) is not None
    assert lasting_owners([a, b, c] * 32, [a, b, c], SIZES, [1_000_000, 9_000_000, 1_000_000]) is None
    assert lasting_owners(before, [a, b, c], SIZES, [1, 1, 1]) is None
    assert lasting_owners(before, [a, c], SIZES, [1, 1]) is None
    assert lasting_owners([], [a, b], SIZES, [1, 1]) is None
