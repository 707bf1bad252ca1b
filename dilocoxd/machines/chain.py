"""What the decision machines know of a chain: its tip and the short memory that the rules need.

Pure view, rebuilt from the log at start and extended by one entry at a time; equal for equal chains.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.wire.entry import RAMP_WHOLE, Contribution, Entry, Evidence, entry_hash, missing_contributors

RECENT_ENTRIES = 8
"""How many entries back a peer counts as a contributor for `quorum = majority` (R14)."""
HEADS_KEPT = 64
BARRED_ROUNDS = 64
"""So many entries after the one that holds evidence against a peer leave it out (R27)."""
EVIDENCE_AGE_MAX = 64
"""Rounds between two votes and the entry that holds them as evidence; not more than BARRED_ROUNDS, so that the same
evidence counts once."""


@dataclass(frozen=True, slots=True)
class ChainView:
    """Tip of a chain of `height` entries, applied to a state with `state_digest`."""

    run_id: RunId
    height: RoundIndex
    head: Digest
    state_digest: Digest
    weight: int = 0
    """Sum of the tokens that count in fork choice, of all entries (`entry_tokens`)."""
    last_phases: Mapping[PeerId, PhaseId] = field(default_factory=lambda: MappingProxyType({}))
    """Newest phase of each peer in the chain. Phases of a peer only rise in a chain, so each is there at most once."""
    recent: tuple[frozenset[PeerId], ...] = ()
    """Contributors of the last RECENT_ENTRIES entries, oldest first."""
    participation_rounds: int = 0
    """Of the manifest: with how many entries before it an entry's number of contributors is compared; 0: with none."""
    electorates: tuple[frozenset[PeerId], ...] = ()
    """Who could vote (R14) below each of the last RECENT_ENTRIES entries, oldest first."""
    turnout: tuple[int, ...] = ()
    """Number of contributors of the last `participation_rounds` entries, oldest first; nobody on probation."""
    missed: int = 0
    """By how many contributors the last entry was short of the fullest recent one."""
    heads: tuple[Digest, ...] = ()
    """Hashes of the last HEADS_KEPT entries, oldest first; the last one is `head`."""
    lowrank_r: int = 0
    """Low rank for the next entry's payloads (the last entry's `next_lowrank_r`, or the manifest's)."""
    inner_steps: int = 0
    """H decided by the last entry (or the manifest's)."""
    planned: tuple[int, int] | None = None
    """(next_lowrank_r, next_inner_steps) that the schedule of the applied state wants; None: as they are now."""

    tip_voters: tuple[PeerId, ...] = ()
    """Who contributed to the entry at the tip, and so voted for it, sorted: what the next entry says of it."""
    barred: Mapping[PeerId, RoundIndex] = field(default_factory=lambda: MappingProxyType({}))
    """Peers that the chain proves to have voted twice, with the last round that leaves them out (R27); none of them is
    below our height."""
    probation_rounds: int = 0
    """Of the manifest: who enters is on probation until it contributed to so many entries (M11); 0: nobody is."""
    served: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    """To how many entries each peer contributed, up to `probation_rounds`, which founders have from the start. Empty
    without probation, and before the first entry of a run whose manifest names no founders: that one makes them."""

    @property
    def announced(self) -> tuple[int, int]:
        """What the next entry must say about the one after it."""
        return self.planned or (self.lowrank_r, self.inner_steps)

    def extended(self, entry: Entry, state_digest: Digest, planned: tuple[int, int] | None = None) -> "ChainView":
        """The view after `entry` was applied. AssertionError if it does not belong on this tip (our bug)."""
        assert entry.round == self.height and entry.parent == self.head, "entry does not belong on this tip"
        head = entry_hash(entry)
        num_counted = len(entry.counted)
        turnout = (*self.turnout, num_counted)
        phases = dict(self.last_phases)
        phases.update({c.peer: c.phase for c in entry.contributions})
        return replace(
            self,
            height=RoundIndex(self.height + 1),
            head=head,
            state_digest=state_digest,
            weight=self.weight + entry_tokens(entry),
            last_phases=MappingProxyType(phases),
            recent=(*self.recent, frozenset(c.peer for c in entry.contributions))[-RECENT_ENTRIES:],
            electorates=(*self.electorates, self.electorate(()))[-RECENT_ENTRIES:],
            turnout=turnout[-self.participation_rounds :] if self.participation_rounds else (),
            missed=self.missing(num_counted),
            heads=(*self.heads, head)[-HEADS_KEPT:],
            lowrank_r=entry.next_lowrank_r,
            inner_steps=entry.next_inner_steps,
            planned=planned,
            tip_voters=tuple(c.peer for c in entry.contributions),
            barred=self._barred_after(entry),
            served=self._served_after(entry),
        )

    def _served_after(self, entry: Entry) -> Mapping[PeerId, int]:
        if not self.probation_rounds:
            return self.served
        first = 0 if self.served else self.probation_rounds
        found = {c.peer: min(self.probation_rounds, self.served.get(c.peer, first) + 1) for c in entry.contributions}
        return MappingProxyType({**self.served, **found})

    def _barred_after(self, entry: Entry) -> Mapping[PeerId, RoundIndex]:
        if not self.barred and not entry.evidence:
            return self.barred
        still = {peer: last for peer, last in self.barred.items() if last > entry.round}
        found = {evidence.peer: RoundIndex(entry.round + BARRED_ROUNDS) for evidence in entry.evidence}
        return MappingProxyType({**still, **found})

    def hash_at(self, round_index: int) -> Digest | None:
        """Hash of the entry of this round, None if there is none or it is too long ago."""
        back = self.height - round_index
        return self.heads[-back] if 0 < back <= len(self.heads) else None

    def holds(self, contribution: Contribution) -> bool:
        """Whether (peer, phase) is in the chain, or can never come into it any more."""
        return self.last_phases.get(contribution.peer, -1) >= contribution.phase

    def missing(self, present: int) -> int:
        """By how many a next entry with `present` contributors is short of the fullest recent one (rule X9)."""
        return missing_contributors(self.turnout, present)

    def is_on_probation(self, peer: PeerId) -> bool:
        """Whether the peer counts in no majority yet (M11)."""
        return bool(self.served) and self.served.get(peer, 0) < self.probation_rounds

    def ramps(self, peers: Iterable[PeerId]) -> tuple[int, ...]:
        """`Entry.ramps` of the next entry, if these contribute to it: it rises with each entry of a peer."""
        if not self.served:
            return ()
        num = self.probation_rounds
        served = [self.served.get(peer, 0) for peer in peers]
        if all(count >= num for count in served):
            return ()
        return tuple(RAMP_WHOLE if n >= num else max(1, RAMP_WHOLE * (n + 1) // (num + 1)) for n in served)

    @property
    def recent_contributors(self) -> frozenset[PeerId]:
        """Of the last RECENT_ENTRIES entries, whether barred or not; nobody on probation."""
        found: frozenset[PeerId] = frozenset().union(*self.recent)
        return frozenset(peer for peer in found if not self.is_on_probation(peer)) if self.served else found

    def evidence_problem(self, evidence: Evidence) -> str:
        """Why the next entry must not hold this evidence, whatever its signatures; empty if it may (R27)."""
        if evidence.peer not in self.last_phases:
            return f"no entry names {evidence.peer}"
        if evidence.peer in self.barred:
            return f"{evidence.peer} is left out already"
        if not 0 <= self.height - evidence.round <= EVIDENCE_AGE_MAX:
            return f"evidence of round {evidence.round} does not count in round {self.height}"
        return ""

    def left_out_by(self, evidence: Collection[Evidence]) -> frozenset[PeerId]:
        """Who counts for nothing in the next entry, if that holds this evidence (R27). Recent contributors are not left
        out if no other one would remain: any part of a split network could go on without a majority of anybody."""
        if not self.barred and not evidence:
            return frozenset()  # as a rule: this is asked at every event
        found = frozenset([*self.barred, *(found.peer for found in evidence)])
        recent = self.recent_contributors
        return found if recent - found else found - recent

    def electorate(self, evidence: Collection[Evidence]) -> frozenset[PeerId]:
        """Of whom more than half commit an entry with this evidence if `quorum = majority` (R14). Empty only on a chain
        without entries."""
        return self.recent_contributors - self.left_out_by(evidence)

    @property
    def rounds_voted_below(self) -> range:
        """Rounds of the last entries, of which we know who could vote below them."""
        return range(self.height - len(self.electorates), self.height)

    def electorate_at(self, round_index: int) -> frozenset[PeerId] | None:
        """Of whom more than half take the entry of this round back (R29), the next one included; None: too long ago, or
        not there yet."""
        if round_index == self.height:
            return self.electorate(())
        back = self.height - round_index
        return self.electorates[-back] if 0 < back <= len(self.electorates) else None


def entry_tokens(entry: Entry) -> int:
    """Weight of one entry in fork choice: what is claimed by those who were not on probation."""
    return sum(c.tokens for c in entry.counted)


def view_of(base: ChainView, entries: Iterable[Entry], state_digest: Digest) -> ChainView:
    """`base` extended by all entries, whose last state has `state_digest` (digests between are in the entries)."""
    view = base
    listed = list(entries)
    for index, entry in enumerate(listed):
        is_last = index + 1 == len(listed)
        view = view.extended(entry, state_digest if is_last else Digest(listed[index + 1].state_digest))
    return view
