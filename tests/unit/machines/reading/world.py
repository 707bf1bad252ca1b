"""A model of sites that read, contribute, are late, die, leave, come back and fork; it notes what was really read."""

import random
from collections import Counter
from dataclasses import dataclass, field

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.reading.leases import LeaseRules, Leases, first_leases
from dilocoxd.machines.reading.ranges import num_leased, num_samples
from dilocoxd.machines.reading.told import ToldPhases
from dilocoxd.wire.entry import Contribution, Entry

SEQ_LEN = 4
ZERO = Digest(bytes(32))


@dataclass
class Work:
    """A phase: what was read in it."""

    phase: PhaseId
    base: int
    queue: list[int]
    """Leased ones that it may read."""
    length: int
    """How many it read, private ones among them."""

    def samples(self, rules: LeaseRules) -> list[int]:
        """Leased ones that it has read."""
        return self.queue[: num_leased(self.length, rules.share)]


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
    is_astray: bool = False
    """It stands on a branch that has lost, and does not know it yet."""

    def __post_init__(self) -> None:
        self.told = ToldPhases(self.peer)

    def forget(self) -> None:
        """Lose what is in progress."""
        self.training = self.flight = None
        self.told = ToldPhases(self.peer)


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
    merges: bool = False
    """A phase takes the new state without losing what it has done, so that its base is newer than its beginning."""
    num_dead: int = 0
    """Phases that never reached the chain."""
    num_misread: int = 0
    """... because the chain would have taken other samples for them than they had read."""
    num_forks: int = 0

    def __post_init__(self) -> None:
        self.leases = [first_leases(self.rules)]

    def step(self) -> None:
        """Something happens."""
        choices = [self.begin, self.close, self.commit, self.commit, self.begin, self.close, self.lose, self.recover]
        rare = [self.arrive, self.fork, self.replace]
        self.rng.choice([*choices, *rare] if self.rng.random() < 0.15 else choices)()

    def arrive(self) -> None:
        """A newcomer."""
        self.sites.append(ModelSite(PeerId(f"site{len(self.sites)}")))

    def begin(self) -> None:
        """A site that is free begins its next phase, on a chain that may be a little old."""
        free = [site for site in self.sites if site.is_alive and site.training is None and not site.is_astray]
        if not free:
            return
        site = self.rng.choice(free)
        site.seen = max(site.seen, len(self.entries) - self.rng.choice([0, 0, 1, 2]))
        length = self.rng.randint(1, self.longest or self.rules.phase_samples_max)
        phase = PhaseId(site.next_phase)
        site.training = Work(phase, site.seen, self.told(site, phase), length)
        site.next_phase += 1

    def told(self, site: ModelSite, phase: PhaseId) -> list[int]:
        """What this phase reads, from now on."""
        queue = site.told.tell(phase, self.leases_for(site.peer, phase, site.seen), 1 << 20)
        assert num_samples(queue) >= self.rules.phase_samples_max
        return [sample for part in queue for sample in range(part.start, part.stop)]

    def replace(self) -> None:
        """The state under a phase is replaced: what it read is dropped, and it reads anew."""
        busy = [site for site in self.sites if site.training is not None and not site.is_astray]
        if busy:
            self._begin_anew(self.rng.choice(busy))

    def _begin_anew(self, site: ModelSite) -> None:
        assert site.training is not None
        site.seen = len(self.entries)
        site.training.base = site.seen
        site.training.queue = self.told(site, site.training.phase)

    def close(self) -> None:
        """A phase ends; its contribution can go as soon as the one before has met its fate."""
        for site in self.sites:
            is_free = site.training is not None and site.flight is None and not site.is_astray
            if is_free and self.rng.random() < 0.7:
                work, site.training = site.training, None
                assert work is not None
                leases = self.leases_for(site.peer, work.phase, site.seen)
                base = site.told.base_of(contribution(site.peer, work), leases)
                if base is None:
                    self.num_misread += 1
                else:
                    work.base, site.flight = base, work

    def commit(self) -> None:
        """Some contributions make an entry; who is late stays so, or gives up."""
        flying = [site for site in self.sites if site.flight is not None and not site.is_astray]
        if not flying:
            return
        group = sorted(self.rng.sample(flying, self.rng.randint(1, len(flying))), key=lambda site: site.peer)
        contributions, read = [], []
        for site in group:
            work = site.flight
            assert work is not None
            contributions.append(contribution(site.peer, work))
            read += work.samples(self.rules)
        self.append(contributions, read)
        for site in flying:
            if site in group:
                self._settle(site)
            elif self.rng.random() < 0.3:
                self._settle(site)
                self.num_dead += 1

    def _settle(self, site: ModelSite) -> None:
        """The fate of its contribution is known; the phase that goes on beside it takes the new state with it, as with
        `arrival`, or does not, as with `phase`."""
        site.flight, site.seen = None, len(self.entries)
        if site.training is not None and self.merges:
            site.training.base = site.seen

    def append(self, contributions: list[Contribution], read: list[int]) -> None:
        """One entry more."""
        entry = Entry(
            RunId("r"), RoundIndex(len(self.entries)), ZERO, ZERO, tuple(contributions), (ZERO,), 0, 0, 1, (), ()
        )
        self.entries.append(entry)
        self.read.append(read)
        self.extend(entry)

    def leases_for(self, peer: PeerId, phase: PhaseId, height: int) -> Leases:
        """Those that this phase reads by, at this height."""
        return self.leases[height]

    def extend(self, entry: Entry) -> None:
        """The leases after `entry`."""
        self.leases.append(self.leases[-1].extended(entry))

    def cut(self, height: int) -> None:
        """Forget those of higher ones."""
        del self.leases[height + 1 :]

    def lose(self) -> None:
        """A site dies, and perhaps comes back, without what it was doing."""
        if self.sites and self.rng.random() < 0.5:
            site = self.rng.choice(self.sites)
            self.num_dead += (site.training is not None) + (site.flight is not None)
            site.forget()
            site.is_alive = self.rng.random() < 0.6

    def fork(self) -> None:
        """The chain of others wins: ours is cut, and who stood on what is gone goes astray until it recovers."""
        self.num_forks += 1
        height = max(0, len(self.entries) - self.rng.randint(1, 4))
        del self.entries[height:], self.read[height:]
        self.cut(height)
        for site in self.sites:
            site.is_astray = site.is_astray or site.seen > height

    def recover(self) -> None:
        """One that went astray takes the chain that is there now. Its contribution in flight stays offered if it may,
        and the phase that it trains goes on, from the new state or with it."""
        astray = [site for site in self.sites if site.is_astray]
        if not astray:
            return
        site = self.rng.choice(astray)
        site.is_astray, site.seen = False, len(self.entries)
        flight, training = site.flight, site.training
        if flight is not None:
            is_known = flight.base <= site.seen
            leases = self.leases_for(site.peer, flight.phase, site.seen)
            base = site.told.base_of(contribution(site.peer, flight), leases) if is_known else None
            if base != flight.base:
                site.flight = None
                self.num_misread += 1
        if training is None:
            return
        fate = self.rng.choice(["anew", "merged", "closing"])
        if fate == "anew":
            self._begin_anew(site)
        elif fate == "merged":
            training.base = site.seen
        else:
            training.base = min(training.base, site.seen)

    def counted(self) -> Counter[int]:
        """How often each sample is in the model."""
        return Counter(sample for read in self.read for sample in read)


def contribution(peer: PeerId, work: Work) -> Contribution:
    """What an entry says of it."""
    return Contribution(peer, work.phase, RoundIndex(work.base), 1, SEQ_LEN * work.length, ZERO)
