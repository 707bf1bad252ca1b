"""Budgets: a burst, then a rate, for each and for all, in bounded memory. The fence of the DHT that uses them."""

import pytest
from hivemind.proto import dht_pb2

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.fence import DhtFence
from dilocoxd.swarm.streams.budget import KEYS_MAX, Budget, Rate


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bucket_gives_a_burst_and_then_its_rate() -> None:
    clock = Clock()
    budget = Budget(clock, each=Rate(2.0, 5.0), total=Rate(1000.0, 1000.0))
    assert [budget.take("a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert budget.take("b"), "another has a bucket of its own"
    clock.now += 1.0
    assert [budget.take("a") for _ in range(3)] == [True, True, False]
    clock.now += 3600.0
    assert [budget.take("a") for _ in range(6)] == [True] * 5 + [False], "what is not used does not add up"


def test_all_together_have_a_bucket_too_and_a_refusal_costs_nobody_anything() -> None:
    clock = Clock()
    budget = Budget(clock, each=Rate(1.0, 3.0), total=Rate(1.0, 4.0))
    assert [budget.take(name) for name in "aaab"] == [True] * 4
    assert not budget.take("b")
    assert not budget.take("a", cost=3.0)
    clock.now += 2.0
    assert [budget.take("b"), budget.take("b"), budget.take("b")] == [True, True, False]


def test_network_has_a_bucket_too_and_keys_can_be_fewer() -> None:
    clock = Clock()
    budget = Budget(clock, each=Rate(2.0, 4.0), network=Rate(1.0, 5.0), keys_max=3)
    assert [budget.take(name, network="n") for name in "aaaabbb"] == [True] * 5 + [False] * 2
    assert budget.take("b", network="m")
    clock.now += 1.0
    assert [budget.take("z", network="n"), budget.take("z", network="n")] == [True, False]
    assert budget.take("c"), "who comes through a relay has no network"
    for name in "defgh":
        budget.take(name, network=name)
    assert (len(budget._buckets), len(budget._networks)) == (3, 3)


def test_ten_thousand_names_need_no_more_memory_than_a_thousand() -> None:
    budget = Budget(Clock(), each=Rate(1.0, 1.0), total=Rate(1.0, 50.0))
    granted = sum(budget.take(f"peer {index}") for index in range(10_000))
    assert granted == 50
    assert len(budget._buckets) == KEYS_MAX


def test_allow_list_holds_for_the_dht_too() -> None:
    friend = PeerId("QmFriend")
    fence = DhtFence(Clock(), lambda peer: peer == friend)
    fence.check(friend, dht_pb2.PingRequest())
    with pytest.raises(WireError, match="not_allowed"):
        fence.check(PeerId("QmStranger"), dht_pb2.PingRequest())
    with pytest.raises(WireError, match=r"5 keys in one DHT request, at most 4"):
        fence.check(friend, dht_pb2.FindRequest(keys=[b"k" * 20] * 5))
    with pytest.raises(WireError, match=r"DHT request of 7\d{4} bytes"):
        fence.check(friend, dht_pb2.StoreRequest(keys=[b"k" * 20], values=[bytes(70_000)]))
