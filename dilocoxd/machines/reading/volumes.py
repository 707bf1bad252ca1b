"""Decides which volume of the shared stores a phase reads, and keeps leases for each: sites may hold only some.

A run cuts its shared stores into `num_volumes` volumes. Which of them a phase read follows from its peer and its
number: pairs of phases, one for each queue (leases.py), go through the volumes in turn, from a place of the peer's own.
A site without a volume skips the numbers that stand for it, which a chain allows (protocol/06-rounds.md, R7.2). So
nobody says what it holds, and an entry needs no field more: its contributions tell by their phases what they read, and
each volume is leased by those that read it, as a store of its own (ADR 37).
"""

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.machines.reading.leases import LANES, LeaseRules, Leases, first_leases
from dilocoxd.wire.entry import Entry


def volume_of(peer: PeerId, phase: PhaseId, num_volumes: int) -> int:
    """The volume that this phase of this site reads."""
    if num_volumes == 1:
        return 0
    digest = hashlib.blake2b(peer.encode(), digest_size=8, person=b"data-volume").digest()
    return (int.from_bytes(digest, "little") + phase // LANES) % num_volumes


@dataclass(frozen=True, slots=True)
class HeldVolumes:
    """What one site can read."""

    peer: PeerId
    num_volumes: int
    held: Set[int]
    """At least one."""

    def first_phase(self, number: int) -> PhaseId:
        """The smallest phase from `number` on that reads a volume which is here; a pair is begun with its first."""
        phase = number
        while volume_of(self.peer, PhaseId(phase), self.num_volumes) not in self.held:
            phase += LANES - phase % LANES
        return PhaseId(phase)


ALL_VOLUMES: Final = HeldVolumes(PeerId(""), 1, frozenset({0}))
"""Where stores are not cut: each phase reads the whole."""


@dataclass(frozen=True, slots=True)
class VolumeLeases:
    """Who reads what of each volume at one height of a chain."""

    volumes: tuple[Leases, ...]

    @property
    def height(self) -> int:
        """Of the chain."""
        return self.volumes[0].height

    @property
    def num_taken(self) -> int:
        """Samples that the model has read, of all volumes."""
        return sum(leases.num_taken for leases in self.volumes)

    @property
    def num_twice(self) -> int:
        """Reads that took nothing, of all volumes (`Leases.num_twice`)."""
        return sum(leases.num_twice for leases in self.volumes)

    def read_by(self, peer: PeerId, phase: PhaseId) -> Leases:
        """Those of the volume that this phase reads."""
        return self.volumes[volume_of(peer, phase, len(self.volumes))]

    def extended(self, entry: Entry) -> "VolumeLeases":
        """The leases after `entry`."""
        count = len(self.volumes)
        named = [(volume_of(one.peer, one.phase, count), one) for one in entry.contributions]
        return VolumeLeases(
            tuple(
                leases.after([one for volume, one in named if volume == number], int(entry.round) + 1)
                for number, leases in enumerate(self.volumes)
            )
        )


def first_volume_leases(rules: LeaseRules) -> VolumeLeases:
    """Those of a chain without entries."""
    return VolumeLeases((first_leases(rules),) * rules.num_volumes)


def volume_leases_of(rules: LeaseRules, entries: Iterable[Entry]) -> VolumeLeases:
    """Those of the chain of these entries."""
    leases = first_volume_leases(rules)
    for entry in entries:
        leases = leases.extended(entry)
    return leases
