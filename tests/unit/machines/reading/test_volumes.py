"""Sites that hold some volumes of a store: nothing is skipped, twice is counted, nobody is told what is not here."""

import itertools
import random
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.machines.reading.leases import DOORS_MAX, LANES, LeaseRules, Leases
from dilocoxd.machines.reading.volumes import (
    HeldVolumes,
    VolumeLeases,
    first_volume_leases,
    volume_leases_of,
    volume_of,
)
from dilocoxd.wire.entry import Entry
from tests.unit.machines.reading.test_leases import check_leases
from tests.unit.machines.reading.world import SEQ_LEN, ModelSite, World

TAG = 1 << 32
"""A sample of a volume is counted as TAG * volume + its number."""


@dataclass
class VolumeWorld(World):
    """Sites that read only what they hold, which may change while nothing is read."""

    held: dict[PeerId, HeldVolumes] = field(default_factory=dict)
    by_volume: list[VolumeLeases] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by_volume = [first_volume_leases(self.rules)]

    def leases_for(self, peer: PeerId, phase: PhaseId, height: int) -> Leases:
        return self.by_volume[height].read_by(peer, phase)

    def extend(self, entry: Entry) -> None:
        self.by_volume.append(self.by_volume[-1].extended(entry))

    def cut(self, height: int) -> None:
        del self.by_volume[height + 1 :]

    def arrive(self) -> None:
        super().arrive()
        self.hold(self.sites[-1].peer, self.some())

    def some(self) -> Set[int]:
        count = self.rules.num_volumes
        return set(self.rng.sample(range(count), self.rng.randint(1, count)))

    def hold(self, peer: PeerId, volumes: Set[int]) -> None:
        self.held[peer] = HeldVolumes(peer, self.rules.num_volumes, volumes)

    def step(self) -> None:
        super().step()
        if self.rng.random() < 0.03:
            site = self.rng.choice(self.sites)
            site.forget()
            self.hold(site.peer, self.some())

    def begin(self) -> None:
        for site in self.sites:
            site.next_phase = self.held[site.peer].first_phase(site.next_phase)
        super().begin()

    def told(self, site: ModelSite, phase: PhaseId) -> list[int]:
        volume = volume_of(site.peer, phase, self.rules.num_volumes)
        assert volume in self.held[site.peer].held
        return [TAG * volume + sample for sample in super().told(site, phase)]


def check_volumes(world: VolumeWorld) -> None:
    leases, counted = world.by_volume[-1], world.counted()
    for number, one in enumerate(leases.volumes):
        of_volume = {tagged: times for tagged, times in counted.items() if tagged // TAG == number}
        check_leases(one, Counter({tagged % TAG: times for tagged, times in of_volume.items()}))
    assert leases.num_taken + leases.num_twice == sum(counted.values())
    assert leases == volume_leases_of(world.rules, world.entries), "not a function of the chain"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), num_volumes=st.integers(1, 5), absent=st.integers(2, 12))
def test_of_each_volume_every_sample_is_read_or_waits(seed: int, num_volumes: int, absent: int) -> None:
    rng = random.Random(seed)
    rules = LeaseRules(SEQ_LEN, rng.randint(1, 9), rng.randint(1, 4), absent, num_volumes=num_volumes)
    world = VolumeWorld(rng, rules)
    for _ in range(rng.randint(1, 4)):
        world.arrive()
    for _ in range(150):
        world.step()
    check_volumes(world)


def test_sites_that_hold_some_volumes_read_each_sample_once_though_many_phases_die() -> None:
    rules = LeaseRules(SEQ_LEN, 6, num_doors=DOORS_MAX, absent_rounds=10_000, num_volumes=4)
    world = VolumeWorld(random.Random(3), rules)
    for volumes in ({0, 1, 2, 3}, {0}, {1, 3}):
        world.arrive()
        world.hold(world.sites[-1].peer, volumes)
    for _ in range(4000):
        world.rng.choice([world.begin, world.close, world.commit])()
        if world.rng.random() < 0.05:
            world.lose()
            for site in world.sites:
                site.is_alive = True
    check_volumes(world)
    counted = world.counted()
    assert world.num_dead > 30
    assert set(counted.values()) == {1}
    assert Counter(tagged // TAG for tagged in counted).keys() == {0, 1, 2, 3}
    assert min(Counter(tagged // TAG for tagged in counted).values()) > 200
    assert world.by_volume[-1].num_twice == 0


def test_what_waits_for_a_site_that_lost_a_volume_goes_to_another() -> None:
    """It still contributes, from the volume that is left: being there is no reason to keep what it cannot read."""
    world = VolumeWorld(random.Random(1), LeaseRules(SEQ_LEN, 6, num_doors=8, absent_rounds=12, num_volumes=2))
    for _ in range(2):
        world.arrive()
        world.hold(world.sites[-1].peer, {0, 1})
    losing, other = (site.peer for site in world.sites)
    play(world, 300)
    waiting = {part for queue in world.by_volume[-1].volumes[1].sites[losing].queues for part in queue}
    world.sites[0].forget()
    world.hold(losing, {0})
    play(world, 600)
    check_volumes(world)
    leases = world.by_volume[-1].volumes
    assert losing in leases[0].sites
    assert losing not in leases[1].sites
    assert other in leases[1].sites
    read = world.counted()
    assert all(read[TAG + sample] for part in waiting for sample in range(part.start, part.stop)), "waits for ever"


def play(world: VolumeWorld, num_steps: int) -> None:
    for _ in range(num_steps):
        world.rng.choice([world.begin, world.close, world.commit])()


@given(
    peer=st.text(min_size=1, max_size=8),
    held=st.sets(st.integers(0, 6), min_size=1),
    number=st.integers(0, 1 << 40),
)
def test_phases_of_a_site_use_both_queues_of_all_it_holds_in_turn(peer: str, held: set[int], number: int) -> None:
    mine = HeldVolumes(PeerId(peer), 7, held)
    phases = [mine.first_phase(number)]
    while len(phases) < 4 * len(held) + 1:
        phases.append(mine.first_phase(phases[-1] + 1))
    assert all(phase >= number for phase in phases)
    assert all(volume_of(mine.peer, phase, 7) in held for phase in phases)
    assert all(before < after for before, after in itertools.pairwise(phases))
    lanes = [phase % LANES for phase in phases[1:]]
    assert all(before != after for before, after in itertools.pairwise(lanes)), "two overlap in one queue"
    pairs = [phase for phase in phases if phase % LANES == 0]
    for first in pairs[:-1]:
        assert mine.first_phase(first + 1) == first + 1, "the other queue of the pair is never read"
    assert {volume_of(mine.peer, phase, 7) for phase in pairs[: len(held)]} == held


def test_sites_begin_at_different_volumes_and_one_volume_is_no_rule() -> None:
    firsts = Counter(volume_of(PeerId(f"peer{n}"), PhaseId(0), 4) for n in range(400))
    assert firsts.keys() == {0, 1, 2, 3}
    assert min(firsts.values()) > 60
    whole = HeldVolumes(PeerId("a"), 1, {0})
    assert [whole.first_phase(n) for n in range(9)] == list(range(9))
