"""A model of sites that read, contribute, are late, die, leave, come back and fork; it notes what was really read."""

import random
from collections import Counter
from dataclasses import dataclass, field

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.reading.leases import LeaseRules, Leases, first_leases
from dilocoxd.machines.reading.ranges import num_leased, num_samples, split
from dilocoxd.wire.entry import Contribution, Entry

SEQ_LEN = 4
ZERO = Digest(bytes(32))


@dataclass
class Work:
    """A phase: what was read in it."""

    phase: PhaseId
    base: int
    samples: list[int]
    """Those that were leased."""
    length: int
    """How many it read, private ones among them."""


@dataclass
class ModelSite:
    """What it is doing; phases are numbered on for ever."""

    peer: PeerId
    is_alive: bool = True
    next_phase: int = 0
    seen: int = 0
    """Height of the chain that it has applied."""
    training: Work | None = None
    flight: Work | None = None

    def forget(self, above: int = -1) -> None:
        """Lose what is in progress, if it began above this height."""
        if self.training is not None and self.training.base > above:
            self.training = None
        if self.flight is not None and self.flight.base > above:
            self.flight = None


@dataclass
class World:
    """One chain, the leases at each of its heights, and the samples behind each contribution."""

    rng: random.Random
    rules: LeaseRules
    sites: list[ModelSite] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)
    """By entry: samples of all its contributions."""
    leases: list[Leases] = field(default_factory=list)
    longest: int = 0
    """Samples of the longest phase; 0 where all of them are leased."""
    num_dead: int = 0
    """Phases that never reached the chain."""
    num_forks: int = 0

    def __post_init__(self) -> None:
        self.leases = [first_leases(self.rules)]

    def step(self) -> None:
        """Something happens."""
        choices = [self.begin, self.close, self.commit, self.commit, self.begin, self.close, self.lose]
        self.rng.choice([*choices, self.arrive, self.fork] if self.rng.random() < 0.15 else choices)()

    def arrive(self) -> None:
        """A newcomer."""
        self.sites.append(ModelSite(PeerId(f"site{len(self.sites)}")))

    def begin(self) -> None:
        """A site that is free begins its next phase, on a chain that may be a little old."""
        free = [site for site in self.sites if site.is_alive and site.training is None]
        if not free:
            return
        site = self.rng.choice(free)
        site.seen = max(site.seen, len(self.entries) - self.rng.choice([0, 0, 1, 2]))
        queue = self.leases[site.seen].reading(site.peer, PhaseId(site.next_phase))
        assert num_samples(queue) >= self.rules.phase_samples_max
        length = self.rng.randint(1, self.longest or self.rules.phase_samples_max)
        first, _ = split(queue, num_leased(length, self.rules.share))
        samples = [sample for part in first for sample in range(part.start, part.stop)]
        site.training = Work(PhaseId(site.next_phase), site.seen, samples, length)
        site.next_phase += 1

    def close(self) -> None:
        """A phase ends; its contribution can go as soon as the one before has met its fate."""
        for site in self.sites:
            if site.training is not None and site.flight is None and self.rng.random() < 0.7:
                site.flight, site.training = site.training, None

    def commit(self) -> None:
        """Some contributions make an entry; who is late stays so, or gives up."""
        flying = [site for site in self.sites if site.flight is not None]
        if not flying:
            return
        group = sorted(self.rng.sample(flying, self.rng.randint(1, len(flying))), key=lambda site: site.peer)
        contributions, read = [], []
        for site in group:
            work = site.flight
            assert work is not None
            contributions.append(contribution(site.peer, work))
            read += work.samples
        self.append(contributions, read)
        for site in flying:
            if site in group:
                site.flight, site.seen = None, len(self.entries)
            elif self.rng.random() < 0.3:
                site.flight, site.seen = None, len(self.entries)
                self.num_dead += 1

    def append(self, contributions: list[Contribution], read: list[int]) -> None:
        """One entry more."""
        entry = Entry(
            RunId("r"), RoundIndex(len(self.entries)), ZERO, ZERO, tuple(contributions), (ZERO,), 0, 0, 1, (), ()
        )
        self.entries.append(entry)
        self.read.append(read)
        self.leases.append(self.leases[-1].extended(entry))

    def lose(self) -> None:
        """A site dies, and perhaps comes back, without what it was doing."""
        if self.sites and self.rng.random() < 0.5:
            site = self.rng.choice(self.sites)
            self.num_dead += (site.training is not None) + (site.flight is not None)
            site.forget()
            site.is_alive = self.rng.random() < 0.6

    def fork(self) -> None:
        """The chain of others wins: ours is cut, and what was begun on what is gone is gone, too."""
        self.num_forks += 1
        height = max(0, len(self.entries) - self.rng.randint(1, 4))
        del self.entries[height:], self.read[height:], self.leases[height + 1 :]
        for site in self.sites:
            site.forget(above=height)
            site.seen = min(site.seen, height)

    def counted(self) -> Counter[int]:
        """How often each sample is in the model."""
        return Counter(sample for read in self.read for sample in read)


def contribution(peer: PeerId, work: Work) -> Contribution:
    """What an entry says of it."""
    return Contribution(peer, work.phase, RoundIndex(work.base), 1, SEQ_LEN * work.length, ZERO)
