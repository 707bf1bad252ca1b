"""Nothing is skipped, and what is read twice is counted, whatever sites do."""

import itertools
import random
from collections import Counter

from hypothesis import given, settings, strategies as st

from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.reading.leases import DOORS_MAX, LANES, LeaseRules, Leases, first_leases, leases_of, num_doors
from dilocoxd.machines.reading.ranges import SampleRange, num_leased, num_samples, split
from dilocoxd.wire.entry import Contribution
from tests.unit.machines.reading.world import SEQ_LEN, ZERO, ModelSite, World

NUM_STEPS = 150


def held(leases: Leases) -> list[int]:
    """Samples in all queues."""
    queues = [queue for lanes in (*leases.doors, *leases.sites.values()) for queue in lanes.queues]
    parts = [part for queue in (*queues, leases.returned) for part in queue]
    return [sample for part in parts for sample in range(part.start, part.stop)]


def check(world: World) -> None:
    check_leases(world.leases[-1], world.counted())


def check_leases(leases: Leases, counted: Counter[int]) -> None:
    waiting = held(leases)
    assert len(waiting) == len(set(waiting)), "in two queues"
    assert set(waiting) | counted.keys() == set(range(leases.fresh)), "skipped"
    assert leases.num_taken == len(counted.keys() - set(waiting)), "read, and would be read again"
    assert leases.num_twice == sum(counted.values()) - leases.num_taken, "read twice and not counted"


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    doors=st.integers(1, 4),
    absent=st.integers(2, 12),
    longest=st.integers(1, 9),
    merges=st.booleans(),
)
def test_every_sample_is_read_or_waits_and_twice_is_counted(
    seed: int, doors: int, absent: int, longest: int, merges: bool
) -> None:
    rng = random.Random(seed)
    world = World(rng, LeaseRules(SEQ_LEN, longest, doors, absent), merges=merges)
    for _ in range(rng.randint(1, 4)):
        world.arrive()
    for _ in range(NUM_STEPS):
        world.step()
    check(world)
    assert world.leases[-1] == leases_of(world.rules, world.entries), "not a function of the chain"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 32), longest=st.integers(1, 12), leased=st.integers(1, 5), private=st.integers(1, 5))
def test_shared_samples_are_counted_where_private_ones_are_read_between_them(
    seed: int, longest: int, leased: int, private: int
) -> None:
    rng, share = random.Random(seed), (leased, leased + private)
    rules = LeaseRules(SEQ_LEN, max(1, num_leased(longest, share)), rng.randint(1, 4), rng.randint(2, 12), share)
    world = World(rng, rules, longest=longest, merges=bool(seed % 2))
    for _ in range(rng.randint(1, 4)):
        world.arrive()
    for _ in range(NUM_STEPS):
        world.step()
    check(world)
    assert world.leases[-1] == leases_of(world.rules, world.entries), "not a function of the chain"


def test_sites_that_stay_read_every_sample_once_though_many_phases_die() -> None:
    world = World(random.Random(5), LeaseRules(SEQ_LEN, 6, num_doors=DOORS_MAX, absent_rounds=10_000))
    for _ in range(3):
        world.arrive()
    for _ in range(3000):
        world.rng.choice([world.begin, world.close, world.commit])()
        if world.rng.random() < 0.05:
            world.lose()
            for site in world.sites:
                site.is_alive = True
    check(world)
    assert world.num_dead > 30
    assert world.leases[-1].num_twice == 0
    assert len(world.counted()) > 1000
    assert set(world.counted().values()) == {1}


def entry_of(world: World, peer: str, phase: int, base: int, count: int) -> None:
    work = Contribution(PeerId(peer), PhaseId(phase), RoundIndex(base), 1, SEQ_LEN * count, ZERO)
    world.append([work], [])


def test_dead_phase_is_read_again_two_phases_later() -> None:
    leases = first_leases(LeaseRules(SEQ_LEN, 8))
    peer = PeerId("a")
    world = World(random.Random(0), leases.rules)
    entry_of(world, "a", 0, 0, 5)
    lost = world.leases[-1].reading(peer, PhaseId(1))
    entry_of(world, "a", 2, 1, 5)
    assert world.leases[-1].reading(peer, PhaseId(3)) == lost
    assert world.leases[-1].reading(peer, PhaseId(1)) == lost


def test_phase_that_began_beside_the_one_of_its_queue_takes_nothing() -> None:
    """The phase between the two died: both read the same front, and a sample behind it was skipped."""
    world = World(random.Random(0), LeaseRules(SEQ_LEN, 8))
    entry_of(world, "a", 0, 0, 1)
    entry_of(world, "a", 2, 0, 7)
    leases = world.leases[-1]
    assert (leases.num_taken, leases.num_twice) == (1, 7)
    (first, *_) = leases.reading(PeerId("a"), PhaseId(4))
    assert first.start == 1
    entry_of(world, "a", 4, 2, 8)
    assert (world.leases[-1].num_taken, world.leases[-1].num_twice) == (9, 7)


def test_absent_sites_samples_go_to_the_next_who_needs_some() -> None:
    world = World(random.Random(0), LeaseRules(SEQ_LEN, 8, absent_rounds=3))
    entry_of(world, "gone", 0, 0, 8)
    before = {part for queue in world.leases[-1].sites[PeerId("gone")].queues for part in queue}
    for round_index in range(1, 8):
        entry_of(world, "here", round_index, round_index, 8)
    leases = world.leases[-1]
    assert PeerId("gone") not in leases.sites
    taken_over = [part for queue in leases.sites[PeerId("here")].queues for part in queue]
    assert sum(len(part) for part in taken_over) == LANES * 8
    assert leases.num_taken + len(held(leases)) == leases.fresh
    assert leases.num_twice == 0
    others = [part for lanes in leases.doors for queue in lanes.queues for part in queue] + list(leases.returned)
    assert not before & set(others)


def test_newcomers_at_one_door_are_counted_when_they_read_the_same() -> None:
    world = World(random.Random(0), LeaseRules(SEQ_LEN, 8))
    first, second = ModelSite(PeerId("a")), ModelSite(PeerId("b"))
    queues = {world.leases[0].reading(site.peer, PhaseId(0)) for site in (first, second)}
    assert len(queues) == 1
    entry_of(world, "a", 0, 0, 8)
    entry_of(world, "b", 0, 0, 8)
    assert (world.leases[-1].num_taken, world.leases[-1].num_twice) == (8, 8)
    assert world.leases[-1].reading(PeerId("a"), PhaseId(1)) != world.leases[-1].reading(PeerId("b"), PhaseId(1))


def test_doors_hold_at_most_an_eighth_of_an_epoch() -> None:
    assert num_doors(10**9, 4000) == DOORS_MAX
    assert num_doors(1000, 4000) == 1
    assert 8 * LANES * 4000 * num_doors(10**6, 4000) <= 10**6


@given(sizes=st.lists(st.integers(1, 5), max_size=6), count=st.integers(0, 40))
def test_split_keeps_order_and_loses_nothing(sizes: list[int], count: int) -> None:
    queue = tuple(SampleRange(10 * n, 10 * n + size) for n, size in enumerate(sizes))
    first, rest = split(queue, count)
    listed = [s for part in (*first, *rest) for s in range(part.start, part.stop)]
    assert listed == [s for part in queue for s in range(part.start, part.stop)]
    assert num_samples(first) == min(count, num_samples(queue))


@given(leased=st.integers(1, 9), private=st.integers(1, 9), count=st.integers(0, 60))
def test_leased_samples_of_a_phase_are_those_at_which_their_number_grows(leased: int, private: int, count: int) -> None:
    share = (leased, leased + private)
    numbers = [num_leased(length, share) for length in range(count + 1)]
    assert all(0 <= after - before <= 1 for before, after in itertools.pairwise(numbers))
    assert abs(numbers[-1] - count * leased / (leased + private)) < 1
    assert num_leased(count, (1, 1)) == count
