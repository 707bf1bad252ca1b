"""Tells the trainers which samples their next phase reads: the leases of our chain, kept in step with it.

Says with which base a contribution of ours may come into that chain, so that no sample is taken that nobody has read.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dilocoxd.config.manifest import Manifest
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.phase.vocabulary import TrainerCommand
from dilocoxd.machines.reading.leases import LeaseRules, num_doors
from dilocoxd.machines.reading.ranges import num_leased
from dilocoxd.machines.reading.told import ToldPhases
from dilocoxd.machines.reading.volumes import VolumeLeases, first_volume_leases, volume_leases_of, volume_of
from dilocoxd.wire.entry import Contribution, Entry
from dilocoxd.wire.local.trainer import SAMPLE_RANGES_MAX, CloseBoundary, StartTraining, TakeAnchor

ABSENT_ROUNDS_MIN: Final = 16


def lease_rules(manifest: Manifest) -> LeaseRules | None:
    """Those of the run; None if nobody leases anything: it reads windows of one text, or each site its own stores."""
    sources = [source for source in manifest.data.sources if not source.private]
    if not sources:
        return None
    seq_len, share = manifest.model.seq_len, manifest.data.leased_share
    longest = max(1, num_leased(manifest.claimed_tokens_max // seq_len, share))
    volumes = manifest.data.num_volumes
    per_epoch = sum(source.num_tokens for source in sources) // seq_len // volumes
    # Who has all volumes comes back to each of them after so many of its phases.
    absent = max(ABSENT_ROUNDS_MIN, manifest.strategy.participation_rounds) * volumes
    return LeaseRules(seq_len, longest, num_doors(per_epoch, longest), absent, share, volumes)


class ReadingPlan:
    """The leases at our height, and what they say to our trainers."""

    def __init__(self, rules: LeaseRules | None, me: PeerId) -> None:
        self.leases: VolumeLeases | None = first_volume_leases(rules) if rules is not None else None
        self._rules = rules
        self._me = me
        self._told = ToldPhases(me)

    def restart(self, entries: Iterable[Entry]) -> None:
        """The chain is another one now, or longer than we knew."""
        if self._rules is not None:
            self.leases = volume_leases_of(self._rules, entries)

    def extend(self, entry: Entry) -> None:
        """`entry` is in the log. Before it is applied: the trainers' next phase may begin as soon as it is."""
        if self.leases is not None and entry.round == self.leases.height:
            self.leases = self.leases.extended(entry)

    def with_samples(self, command: TrainerCommand) -> TrainerCommand:
        """`command`, with what its phase reads if it begins one, or begins it anew: what the trainers did before they
        replace their state is dropped, so what they read in it is not read."""
        match command:
            case StartTraining(phase=phase) | CloseBoundary(next_phase=phase):
                return replace(command, samples=self._samples(phase), volume=self._volume(phase))
            case TakeAnchor(how="replace") if (newest := self._told.newest) is not None:
                return replace(command, samples=self._samples(newest), volume=self._volume(newest))
            case _:
                return command

    def _samples(self, phase: PhaseId) -> tuple[int, ...]:
        if self.leases is None:
            return ()
        queue = self._told.tell(phase, self.leases.read_by(self._me, phase), SAMPLE_RANGES_MAX)
        return tuple(bound for part in queue for bound in (part.start, part.stop))

    def _volume(self, phase: PhaseId) -> int:
        return volume_of(self._me, phase, self._rules.num_volumes) if self._rules is not None else 0

    def base_of(self, contribution: Contribution) -> RoundIndex | None:
        """The base with which our contribution may be in our chain; None: with none (machines/reading/told.py)."""
        if self.leases is None:
            return contribution.base_round
        return self._told.base_of(contribution, self.leases.read_by(self._me, contribution.phase))
