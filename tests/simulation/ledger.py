"""The global truth against which invariants are checked: every commit, every contribution's fate."""

import itertools
from collections.abc import Set
from dataclasses import dataclass, field

from dilocoxd.ids import Digest, PeerId, PhaseId
from dilocoxd.machines.recovery.rollback import Choice
from dilocoxd.wire.entry import Entry, entry_hash
from tests.simulation.peer.arithmetic import weighted_mean

OFFERED, INCLUDED, EXCLUDED, LOST = "offered", "included", "excluded", "lost"
RECLAIMED = "reclaimed"


class Broken(AssertionError):
    """An invariant does not hold; the text names it."""


@dataclass
class Ledger:
    """Append-only knowledge of the whole simulation."""

    fates: dict[tuple[PeerId, PhaseId], str] = field(default_factory=dict)
    digests: dict[Digest, Digest] = field(default_factory=dict)
    """Chain head -> state digest, at whoever had it first."""
    entries: dict[int, set[Digest]] = field(default_factory=dict)
    acknowledged: dict[PeerId, list[Digest]] = field(default_factory=dict)
    """What each peer has on its disk, in order of commits (rolled back ones included)."""
    contributors: dict[Digest, frozenset[PeerId]] = field(default_factory=dict)
    parents: dict[Digest, Digest] = field(default_factory=dict)
    payloads: dict[tuple[PeerId, PhaseId], list[bytes]] = field(default_factory=dict)
    """What each contribution really is, segment by segment."""
    crashed: set[PeerId] = field(default_factory=set)
    missed: dict[PeerId, int] = field(default_factory=dict)
    """Who stood still and was taken for dead: the first round that was decided without it."""
    left: dict[PeerId, int] = field(default_factory=dict)
    """Who has left and is not back: how many entries it had, and the one that it may have voted for."""
    taken_along: set[tuple[PeerId, int]] = field(default_factory=set)
    """Whoever left has the entry of this round, and nobody who runs: at once, or when the last who had it died, or was
    taken for dead. Or whoever has the entry could not be got to give it (R22)."""
    given_up: dict[PeerId, list[Entry]] = field(default_factory=dict)
    """Entries that a peer leaves in the recovery that is going on."""
    reverted: set[Digest] = field(default_factory=set)
    """Entries that were taken back (R29), and those that stood on them."""
    lost_logs: set[PeerId] = field(default_factory=set)
    reported: dict[PeerId, set[Digest]] = field(default_factory=dict)
    """Entries that a peer gave up for a heavier chain, as it reported."""

    def offered(self, peer: PeerId, phase: PhaseId) -> None:
        if (peer, phase) in self.fates:
            raise Broken(f"R-b: {peer} offers phase {phase} twice")
        self.fates[peer, phase] = OFFERED

    def settled(self, peer: PeerId, phase: PhaseId, *, is_included: bool, is_voted: bool = False) -> None:
        """Given up after a vote it stays owed: an entry that recovery appends may still name it (`taken`)."""
        if self.fates.get((peer, phase)) not in (OFFERED, None):
            raise Broken(f"R-b: phase {phase} of {peer} is settled although it is {self.fates[peer, phase]}")
        self.fates[peer, phase] = INCLUDED if is_included else RECLAIMED if is_voted else EXCLUDED

    def reclaimed(self, peer: PeerId, phase: PhaseId) -> None:
        """A rollback took it out of the chain; its owner puts it back into its feedback."""
        self.fates[peer, phase] = RECLAIMED

    def taken(self, peer: PeerId, entry: Entry) -> None:
        """`peer` appends an entry: what it names of `peer` leaves the feedback if it was put back there."""
        for contribution in entry.contributions:
            name = (contribution.peer, contribution.phase)
            if contribution.peer == peer and self.fates.get(name) == RECLAIMED:
                self.fates[name] = INCLUDED

    def lost(self, peer: PeerId, phase: PhaseId) -> None:
        """The process died with the contribution in flight."""
        if self.fates.get((peer, phase)) == OFFERED:
            self.fates[peer, phase] = LOST

    def wiped(self, peer: PeerId) -> None:
        """The disk is gone: what only this peer acknowledged may be lost; its feedback is lost."""
        self.acknowledged[peer] = []
        self.given_up.pop(peer, None)
        self.lost_logs.add(peer)

    def forgot(self, peer: PeerId) -> None:
        """Its feedback is gone with its disk: what had been put back there is nowhere now."""
        reclaimed = [name for name, fate in self.fates.items() if name[0] == peer and fate == RECLAIMED]
        self.fates.update(dict.fromkeys(reclaimed, LOST))

    def committed(self, peer: PeerId, entry: Entry) -> None:
        digest = entry_hash(entry)
        self.entries.setdefault(entry.round, set()).add(digest)
        self.contributors[digest] = frozenset(c.peer for c in entry.counted)
        self.parents[digest] = Digest(entry.parent)
        self.acknowledged.setdefault(peer, []).append(digest)

    def opened(self, peer: PeerId, entries: list[Entry]) -> None:
        """A process starts with this log: what it wrote just before it died counts as acknowledged."""
        known = set(self.acknowledged.get(peer, ()))
        for entry in entries:
            self.taken(peer, entry)
            if entry_hash(entry) not in known:
                self.committed(peer, entry)
        self.recovered(peer, entries)

    def rolls_back(self, peer: PeerId, dropped: list[Entry], kept: list[Entry], *, is_adopted: bool = False) -> None:
        """R-d: only a heavier chain is a reason, or the operator's word, and it is reported which entries are lost."""
        lighter, heavier = _weight(dropped), _weight(kept)
        is_lighter = heavier < lighter or (heavier == lighter and entry_hash(kept[0]) > entry_hash(dropped[0]))
        if not kept or (is_lighter and not is_adopted):
            raise Broken(f"R-d: {peer} gives up {len(dropped)} entries for a chain that is not heavier")
        self.reported.setdefault(peer, set()).update(entry_hash(entry) for entry in dropped)
        self.given_up[peer] = [] if is_adopted else dropped

    def takes_back(self, peer: PeerId, dropped: list[Entry], reverted: Set[Digest]) -> None:
        """R29: a majority has decided so. What the peer gave from the first such entry on is lost."""
        digests = {entry_hash(entry) for entry in dropped}
        self.reverted |= digests
        self.reported.setdefault(peer, set()).update(digests)
        self.given_up.pop(peer, None)
        for entry in itertools.dropwhile(lambda one: entry_hash(one) not in reverted, dropped):
            for c in entry.contributions:
                if c.peer == peer:
                    if self.fates.get((peer, c.phase)) == RECLAIMED:
                        raise Broken(f"R29: {peer} owes phase {c.phase} again, which may have spoiled the model")
                    self.fates[peer, c.phase] = LOST

    def takes_along(self, heights: list[int]) -> None:
        """`heights`: of the logs of all that run. What those who have left had beyond them is lost with them."""
        best = max(heights, default=0)
        self.taken_along.update((peer, taken) for peer, height in self.left.items() for taken in range(best, height))

    def decided_without(self, peers: Set[PeerId], round_index: int) -> None:
        """They live, but stand still, and whoever commits this round takes them for dead, or never heard of them."""
        self.missed.update({peer: min(round_index, self.missed.get(peer, round_index)) for peer in peers})

    def recovered(self, peer: PeerId, log: list[Entry]) -> None:
        """R-d: what entries were given up for has been got."""
        dropped = self.given_up.pop(peer, [])
        if not dropped or dropped[0] in log:
            return
        got = log[dropped[0].round :]
        if _weight(got) < _weight(dropped):
            raise Broken(f"R-d: {peer} gave up {len(dropped)} entries for a chain that it did not get")

    def returns(self, peer: PeerId, own: list[Entry], taken: list[Entry]) -> None:
        """The better chain could not be had: what was given up for it is in the chain again."""
        for entry in own:
            self.reported[peer].discard(entry_hash(entry))
        for entries, fate in ((taken, RECLAIMED), (own, INCLUDED)):
            for c in (c for entry in entries for c in entry.contributions if c.peer == peer):
                self.fates[c.peer, c.phase] = fate
        self.reported[peer].update(entry_hash(entry) for entry in taken)

    def chose(self, peer: PeerId, choice: Choice) -> None:
        """It starts after a crash between two branches: the better one stays, with the books of turning back."""
        if choice.goes_back:
            self.returns(peer, list(choice.own), list(choice.left))
        else:
            for phase, _ in choice.dropped(peer):
                self.reclaimed(peer, phase)

    def at_head(self, peer: PeerId, head: Digest, state_digest: Digest) -> None:
        known = self.digests.setdefault(head, state_digest)
        if known != state_digest:
            raise Broken(f"R-a: {peer} has other bits at head {head.hex()[:12]}")

    def check_chain(self, peer: PeerId, entries: list[Entry], liars: set[PeerId]) -> None:
        """R-b for one chain: each contribution at most once, and what was put back into feedback is not in it.

        What a liar has in its own feedback is its own affair: it may name a phase in a branch that it forges, and then
        give up one of the same number."""
        seen: set[tuple[PeerId, PhaseId]] = set()
        for entry in entries:
            for contribution in entry.contributions:
                name = (contribution.peer, contribution.phase)
                if name in seen:
                    raise Broken(f"R-b: {name} is twice in the chain of {peer}")
                seen.add(name)
                if self.fates.get(name) == OFFERED and name[0] == peer:
                    raise Broken(f"R-b: {name} is in the chain of {peer}, but its owner has not settled it")
                if name[0] in liars:
                    continue
                if name not in self.fates:
                    raise Broken(f"R25: {name} is in the chain of {peer} and was never offered")
                if self.fates.get(name) == EXCLUDED or (self.fates.get(name) == RECLAIMED and name[0] == peer):
                    raise Broken(f"R-b: {name} is in the chain of {peer} and in its owner's error feedback")

    def check_sums(self, peer: PeerId, entry: Entry, results: list[bytes], liars: set[PeerId]) -> None:
        """One pass: every result is the weighted mean of what the named contributions really hold."""
        names = [(c.peer, c.phase) for c in entry.contributions]
        if liars & {name[0] for name in names} or any(name not in self.payloads for name in names):
            return
        for segment, result in enumerate(results):
            shares = [
                (self.payloads[c.peer, c.phase][segment], c.tokens, entry.ramp_of(place))
                for place, c in enumerate(entry.contributions)
            ]
            if weighted_mean(shares) != result:
                raise Broken(f"R-b: {peer} commits a sum that is not that of the contributions of round {entry.round}")

    def num_unexcused_forks(self) -> int:
        """Forks where no branch could be unknown to the survivors because all its contributors were lost to them."""
        return sum(
            not any(all(self._is_lost(peer, round_index) for peer in self.contributors[digest]) for digest in found)
            for (round_index, _), found in self._siblings().items()
            if len(found) > 1
        )

    def _siblings(self) -> dict[tuple[int, Digest], set[Digest]]:
        """Entries of one round on one parent: what follows on different parents is no fork of its own."""
        siblings: dict[tuple[int, Digest], set[Digest]] = {}
        for round_index, found in self.entries.items():
            for digest in found - self.reverted:
                siblings.setdefault((round_index, self.parents[digest]), set()).add(digest)
        return siblings

    def _is_lost(self, peer: PeerId, round_index: int) -> bool:
        """It has crashed, or left with the entry of this round, and nobody else has it any more; or stood still in this
        round or before, for longer than anybody waits."""
        is_missed = self.missed.get(peer, round_index + 1) <= round_index
        return peer in self.crashed or (peer, round_index) in self.taken_along or is_missed

    def num_forks(self) -> int:
        return sum(len(found) - 1 for found in self.entries.values())


def _weight(entries: list[Entry]) -> int:
    return sum(c.tokens for entry in entries for c in entry.counted)
