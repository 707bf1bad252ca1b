"""The test internet does what it says: round trips, losses, order and rates as real sockets see them."""

import os
from collections.abc import Iterator

import pytest

from tests.harness.internet.conditions import Conditions, rtt
from tests.harness.internet.network import Internet
from tests.harness.internet.probes import bulk_bytes_per_s, datagrams_received, round_trips_s

pytestmark = [pytest.mark.processes]

NUM = 3000
SLACK_S = 0.05
"""The fastest of several: a busy machine answers late now and then, but no packet may come early."""


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    with Internet(f"ch{os.getpid() % 10000}in", "ab", Conditions()) as made:
        yield made


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.3])
def test_round_trip_is_the_one_asked_for(internet: Internet, seconds: float) -> None:
    internet.set(rtt(seconds))
    assert seconds <= min(round_trips_s(internet, "a", "b")) <= seconds + SLACK_S


def test_one_in_a_hundred_datagrams_is_lost_and_counted(internet: Internet) -> None:
    before = internet.set(rtt(0.02, loss=0.01))[internet.address("b")]["lost"]
    found = datagrams_received(internet, "a", "b", NUM)
    assert found == sorted(found)
    lost = internet.counts()[internet.address("b")]["lost"] - before
    assert NUM - len(found) == lost
    assert lost / NUM == pytest.approx(0.01, abs=0.01)


def test_some_datagrams_overtake_others(internet: Internet) -> None:
    internet.set(Conditions(delay_s=0.02, reordered=0.05))
    found = datagrams_received(internet, "a", "b", NUM)
    assert sorted(found) == list(range(NUM))
    assert found != sorted(found)


def test_nothing_arrives_faster_than_the_line(internet: Internet) -> None:
    internet.set(Conditions(bit_per_s=2e8))
    assert bulk_bytes_per_s(internet, "a", "b", 16) < 2e8 / 8


def test_a_cut_is_silent_and_heals(internet: Internet) -> None:
    internet.set(rtt(0.02))
    internet.cut("b")
    assert datagrams_received(internet, "a", "b", 5) == []
    internet.heal("b")
    assert datagrams_received(internet, "a", "b", 5) == list(range(5))
