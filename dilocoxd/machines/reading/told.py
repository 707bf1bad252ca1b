"""What the phases of one site were told to read, and the base that their contributions may name for it. Pure.

An entry takes from the front of a queue what a contribution claims, unless the base of it is older than that front
(leases.py). So a base stands for what the phase has read, and two things part them. A merge moves the base of a phase
that goes on, when the front of its queue may have changed since it was told what to read: then it names the height at
which it was told. And a fork that a phase lives through, or its contribution, can leave it with what another branch
would have had it read: where no base says so, it must not come into the chain, and its work stays owed.
Source: protocol/12-reading.md, Q4.
"""

from dataclasses import dataclass, replace
from typing import Final

from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.reading.leases import Leases
from dilocoxd.machines.reading.ranges import Queue, joined, split
from dilocoxd.wire.entry import Contribution

TOLD_MAX: Final = 4
"""Phases remembered: one is in flight, one trains, and the next may have been told."""


@dataclass(frozen=True, slots=True)
class ReadingTold:
    """What one phase was told to read last."""

    height: int
    """Of the leases that it follows from."""
    queue: Queue


class ToldPhases:
    """Those of the newest phases."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._told: dict[PhaseId, ReadingTold] = {}
        self.newest: PhaseId | None = None
        """The phase that was told last."""

    def tell(self, phase: PhaseId, leases: Leases, ranges_max: int) -> Queue:
        """This phase begins, or it reads anew because its progress was dropped: what it reads, so many ranges at
        most."""
        queue = leases.reading(self._me, phase)[:ranges_max]
        self._told.pop(phase, None)
        self._told[phase] = ReadingTold(leases.height, queue)
        if len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]
        self.newest = phase
        return queue

    def base_of(self, contribution: Contribution, leases: Leases) -> RoundIndex | None:
        """The base with which our contribution may be in this chain, its own if that fits. None: none does."""
        told = self._told.get(contribution.phase)
        if told is None:
            return contribution.base_round if leases.taken_by(contribution) is None else None
        read, _ = split(told.queue, leases.rules.num_leased(contribution))
        older = RoundIndex(min(told.height, contribution.base_round))
        for base in (contribution.base_round, older):
            taken = leases.taken_by(replace(contribution, base_round=base))
            if taken is None or joined(taken) == joined(read):
                return base
        return None
