"""Decides which samples each phase of each site reads, from the chain alone: equal for equal chains, no message.

A site has LANES queues of samples; its phase p reads the queue p mod LANES from its front. While phase p trains, the
contribution of p - 1 is on its way and that of p - 2 has met its fate, so two phases that overlap never share a queue.
An entry that names (peer, phase, tokens) takes that many samples from the queue of that phase; in a run with private
stores as many as a phase of this length reads from shared ones (`num_leased`). A phase that never
reaches the chain takes nothing: the next phase of that queue reads its samples again.

Each queue holds at least what the longest phase can read; what is taken is made up from the samples that others gave
back, then from fresh ones. A site that is absent for some entries gives all of its queues back. A site that is not in
the chain yet reads at a door, one of several pairs of queues, chosen by its peer id; with its first entry the pair is
its own, and the door gets a new one.

Two newcomers at one door before either is in the chain read the same samples. The entry of the second names a base from
before the door's new pair: it then takes nothing, and is counted (`num_twice`). So is a site that comes back after its
queues were given to others, and a phase that began while the one two before it was still on its way: that happens when
the one between them died, and both read the same front. A sample is never skipped, as long as sites offer no
contribution for which others would be taken than it has read (told.py).
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.machines.reading.ranges import Queue, SampleRange, num_leased, num_samples, split
from dilocoxd.wire.entry import Contribution, Entry

LANES: Final = 2
DOORS_MAX: Final = 64
_RESERVED_SHARE: Final = 8
"""Doors together hold at most this part of an epoch, as 1 / _RESERVED_SHARE."""


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """What a run fixes."""

    seq_len: int
    phase_samples_max: int
    """Leased samples of the longest phase that a contribution may claim."""
    num_doors: int = 1
    absent_rounds: int = 16
    """A site without a contribution in so many entries gives its queues back."""
    share: tuple[int, int] = (1, 1)
    """(a, b): of b samples of a phase a are leased."""
    num_volumes: int = 1
    """Each has leases of its own, by these rules (volumes.py)."""

    def num_leased(self, contribution: Contribution) -> int:
        """Leased samples that it claims."""
        return num_leased(contribution.tokens // self.seq_len, self.share)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The queues of one site, or of a door."""

    queues: tuple[Queue, ...]
    since: tuple[int, ...]
    """For each, height since which its front is what it is: a phase with an older base read something else."""


@dataclass(frozen=True, slots=True)
class Leases:
    """Who reads what at one height of a chain."""

    rules: LeaseRules
    height: int = 0
    fresh: int = 0
    """First sample that was never in a queue."""
    returned: Queue = ()
    """Given back, to be handed out before fresh ones."""
    doors: tuple[Lanes, ...] = ()
    sites: Mapping[PeerId, Lanes] = field(default_factory=lambda: MappingProxyType({}))
    last_entries: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    """Newest entry that names each site in `sites`."""
    left: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    """Height at which each of the others gave its queues back."""
    num_taken: int = 0
    """Samples that the model has read."""
    num_twice: int = 0
    """Reads that took nothing: their samples are read by others, too (see above)."""

    def reading(self, peer: PeerId, phase: PhaseId) -> Queue:
        """What this phase reads, in this order, as far as it comes."""
        lanes = self.sites.get(peer) or self.doors[self._door_of(peer)]
        return lanes.queues[phase % LANES]

    def taken_by(self, contribution: Contribution) -> Queue | None:
        """What an entry with this contribution alone takes; None if its base is older than the front of its queue."""
        peer, lane = contribution.peer, contribution.phase % LANES
        lanes = self.sites.get(peer) or self.doors[self._door_of(peer)]
        if contribution.base_round < max(lanes.since[lane], self.left.get(peer, 0)):
            return None
        return split(lanes.queues[lane], self.rules.num_leased(contribution))[0]

    def extended(self, entry: Entry) -> "Leases":
        """The leases after `entry`."""
        return self.after(entry.contributions, int(entry.round) + 1)

    def after(self, contributions: Iterable[Contribution], height: int) -> "Leases":
        """The leases at `height`, whose newest entry has these contributions that are read from here."""
        book = _Book(self)
        for contribution in contributions:
            book.take(contribution, self._door_of(contribution.peer))
        return book.closed(height)

    def _door_of(self, peer: PeerId) -> int:
        digest = hashlib.blake2b(peer.encode(), digest_size=8, person=b"data-door").digest()
        return int.from_bytes(digest, "little") % len(self.doors)


def first_leases(rules: LeaseRules) -> Leases:
    """Those of a chain without entries: only doors."""
    book = _Book(Leases(rules))
    book.doors = [book.new_lanes(0) for _ in range(rules.num_doors)]
    return book.closed(0)


def leases_of(rules: LeaseRules, entries: Iterable[Entry]) -> Leases:
    """Those of the chain of these entries."""
    leases = first_leases(rules)
    for entry in entries:
        leases = leases.extended(entry)
    return leases


def num_doors(samples_per_epoch: int, phase_samples_max: int) -> int:
    """As many as an epoch can spare: where the text is short, samples are read many times anyway."""
    return max(1, min(DOORS_MAX, samples_per_epoch // (_RESERVED_SHARE * LANES * phase_samples_max)))


class _Book:
    """Leases while they change."""

    def __init__(self, before: Leases) -> None:
        self._before = before
        self._fresh, self._returned = before.fresh, before.returned
        self.doors = list(before.doors)
        self._sites, self._last = dict(before.sites), dict(before.last_entries)
        self._left = dict(before.left)
        self._num_taken, self._num_twice = before.num_taken, before.num_twice

    def take(self, contribution: Contribution, door: int) -> None:
        """The model has this phase now."""
        peer, height = contribution.peer, self._before.height
        count = self._before.rules.num_leased(contribution)
        lanes = self._sites.get(peer)
        if lanes is None:
            lanes, self.doors[door] = self.doors[door], self.new_lanes(height + 1)
        left_at, lane = self._left.pop(peer, 0), contribution.phase % LANES
        queues, since = list(lanes.queues), [max(one, left_at) for one in lanes.since]
        if contribution.base_round < since[lane]:
            self._num_twice += count
        else:
            taken, rest = split(queues[lane], count)
            self._num_taken += num_samples(taken)
            self._num_twice += count - num_samples(taken)
            queues[lane], since[lane] = self._filled(rest), height + 1
        self._sites[peer], self._last[peer] = Lanes(tuple(queues), tuple(since)), height

    def new_lanes(self, since: int) -> Lanes:
        """Full queues."""
        return Lanes(tuple(self._filled(()) for _ in range(LANES)), (since,) * LANES)

    def _filled(self, queue: Queue) -> Queue:
        missing = self._before.rules.phase_samples_max - num_samples(queue)
        if missing <= 0:
            return queue
        old, self._returned = split(self._returned, missing)
        queue = (*queue, *old)
        missing -= num_samples(old)
        if missing:
            queue = (*queue, SampleRange(self._fresh, self._fresh + missing))
            self._fresh += missing
        return queue

    def closed(self, height: int) -> Leases:
        """At this height, with the queues of those who are absent given back."""
        for peer, last in sorted(self._last.items()):
            if height - last > self._before.rules.absent_rounds:
                lanes = self._sites.pop(peer)
                self._returned = (*self._returned, *(part for queue in lanes.queues for part in queue))
                del self._last[peer]
                self._left[peer] = height
        return replace(
            self._before,
            height=height,
            fresh=self._fresh,
            returned=self._returned,
            doors=tuple(self.doors),
            sites=MappingProxyType(self._sites),
            last_entries=MappingProxyType(self._last),
            left=MappingProxyType(self._left),
            num_taken=self._num_taken,
            num_twice=self._num_twice,
        )
