"""What the test internet does to packets: so many are lost, order is kept, the rate is kept, the queue has an end."""

import itertools
import random

import pytest

from tests.harness.internet.conditions import QUEUE_BYTES, Conditions, LinkQueue, rtt

NUM = 20_000
SIZE = 9000


def arrivals(conditions: Conditions, gap_s: float = 0.0) -> list[float | None]:
    queue = LinkQueue(random.Random(1))
    found = []
    for number in range(NUM):
        found.append(queue.due(SIZE, conditions, number * gap_s))
        if found[-1] is not None:
            queue.arrived(SIZE)
    return found


def test_a_packet_takes_half_of_the_round_trip() -> None:
    assert set(arrivals(rtt(0.3))) == {0.15}


def test_share_of_lost_packets_is_the_one_asked_for() -> None:
    lost = sum(at is None for at in arrivals(rtt(0.1, loss=0.01)))
    assert lost / NUM == pytest.approx(0.01, abs=0.004)  # five standard deviations


def test_jitter_spreads_packets_and_keeps_their_order() -> None:
    found = arrivals(rtt(0.1, jitter_s=0.02), gap_s=0.001)
    delays = [at - number * 0.001 for number, at in enumerate(found) if at is not None]
    assert min(delays) >= 0.05
    assert 0.01 < max(delays) - min(delays) <= 0.02
    assert found == sorted(found)  # type: ignore[type-var]


def test_reordered_packets_overtake() -> None:
    found = arrivals(Conditions(delay_s=0.1, reordered=0.05), gap_s=0.001)
    overtaken = sum(later < earlier for earlier, later in itertools.pairwise(found))  # type: ignore[operator]
    assert overtaken / NUM == pytest.approx(0.05, abs=0.01)


def test_rate_is_that_of_the_line() -> None:
    last = arrivals(Conditions(bit_per_s=1e8))[-1]
    assert last == pytest.approx(NUM * SIZE * 8 / 1e8)


def test_queue_has_an_end_and_says_what_it_dropped() -> None:
    queue = LinkQueue(random.Random(1))
    kept = sum(queue.due(SIZE, rtt(1.0), 0.0) is not None for _ in range(NUM))
    assert kept == QUEUE_BYTES // SIZE
    assert queue.overflowed == NUM - kept
    queue.arrived(SIZE)
    assert queue.due(SIZE, rtt(1.0), 0.0) is not None
