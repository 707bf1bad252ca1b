"""Decides what to believe of another peer's chain, whether it is better than ours, and what leaving ours costs. Pure.

The driver fetches and applies (daemon/recovery_driver.py; the simulator has its own). An entry is acceptable to a
stranger when it continues the chain, keeps the manifest's caps, counts no (peer, phase) twice, and carries at least one
vote, all of them valid and from its contributors; with `quorum = majority` from more than half of the peers that
contributed lately. Votes bind the payload by its hashes and the state by its digest. Source: docs/internals.md 3.10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.rounds.chain import ChainView, entry_tokens
from dilocoxd.rounds.commands import InFlight, SettleContribution
from dilocoxd.rounds.coordinator import missing_majority
from dilocoxd.rounds.limits import RoundLimits, VoteKeys
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash, vote_text


@dataclass(frozen=True, slots=True)
class Branch:
    """A peer's entries from `fork` on: the first round in which its chain differs from ours or goes on."""

    fork: int
    entries: tuple[SignedEntry, ...]

    @property
    def tokens(self) -> int:
        return sum(entry_tokens(signed.entry) for signed in self.entries)

    @property
    def tip(self) -> int:
        return self.fork + len(self.entries)


def check_branch(branch: Branch, base: ChainView, limits: RoundLimits, keys: VoteKeys) -> None:
    """Raises WireError unless every entry is acceptable to a stranger (top of this file).

    `base` is the view of the chain below the fork. Signatures take about 0.1 ms each: call it in a thread.
    """
    view = base
    for signed in branch.entries:
        entry = signed.entry
        if entry.run_id != view.run_id or entry.parent != view.head or entry.round != view.height:
            raise WireError("malformed", f"entry {entry.round} does not continue the chain")
        if entry.lowrank_r != view.lowrank_r:
            raise WireError("malformed", f"entry {entry.round} uses a low rank that the entry before did not announce")
        _check_claims(entry, view.last_phases, limits)
        _check_votes(signed, keys)
        if limits.has_majority_quorum:
            reason = missing_majority(frozenset(vote.peer for vote in signed.votes), view.recent_contributors)
            if reason:
                raise WireError("bad_quorum", f"entry {entry.round}: {reason}")
        view = view.extended(entry, Digest(bytes(32)))


def _check_claims(entry: Entry, last_phases: Mapping[PeerId, PhaseId], limits: RoundLimits) -> None:
    for contribution in entry.contributions:
        is_bounded = contribution.tokens <= limits.tokens_max and contribution.inner_steps <= limits.inner_steps_max
        if not is_bounded or contribution.base_round > entry.round:
            raise WireError("out_of_range", f"entry {entry.round}: claim of {contribution.peer} is over the caps")
        if last_phases.get(contribution.peer, -1) >= contribution.phase:
            raise WireError("malformed", f"entry {entry.round} counts {contribution.peer} twice")


def _check_votes(signed: SignedEntry, keys: VoteKeys) -> None:
    contributors = {contribution.peer for contribution in signed.entry.contributions}
    text = vote_text(signed.entry.run_id, entry_hash(signed.entry))  # type: ignore[arg-type]
    for vote in signed.votes:
        if vote.peer not in contributors or not keys.verify(vote, text):
            raise WireError("bad_signature", f"entry {signed.entry.round}: vote of {vote.peer} is not valid")


def is_better(branch: Branch, own: Sequence[Entry]) -> bool:
    """Fork choice: more tokens since the fork (`own` are our entries); on a tie the smaller hash of the first entry."""
    if not branch.entries:
        return False
    if not own:
        return True
    theirs, ours = branch.tokens, sum(entry_tokens(entry) for entry in own)
    if theirs != ours:
        return theirs > ours
    return entry_hash(branch.entries[0].entry) < entry_hash(own[0])


@dataclass(frozen=True, slots=True)
class Choice:
    """What a start finds when the last process died between two branches: the better one stays."""

    fork: int
    own: tuple[Entry, ...]
    """Was set aside ..."""
    taken: tuple[Entry, ...]
    """... for this, as far as the log has it."""
    goes_back: bool
    """`own` is the chain again, instead of `taken`."""

    @property
    def left(self) -> tuple[Entry, ...]:
        """Entries that the chain does not have from now on."""
        kept, other = (self.own, self.taken) if self.goes_back else (self.taken, self.own)
        return tuple(entry for entry in other if entry not in kept)

    def dropped(self, me: PeerId) -> tuple[tuple[PhaseId, Entry], ...]:
        """Our contributions that only what is left has, each with its entry: owed again, as after turning back."""
        kept = self.own if self.goes_back else self.taken
        inside = {c.phase for entry in kept for c in entry.contributions if c.peer == me}
        outside = [(c.phase, entry) for entry in self.left for c in entry.contributions if c.peer == me]
        return tuple((phase, entry) for phase, entry in outside if phase not in inside)


def choose_at_start(
    own: Sequence[Entry], below: Digest | None, taken: Sequence[SignedEntry], num_replayable: int | None = None
) -> Choice | None:
    """After a crash between two branches: whether `own`, which was set aside, is the chain again instead of `taken`.

    `below`: head of the log at the fork; None when the log ends below it (it was damaged or lost meanwhile). Of `taken`
    only the first `num_replayable` count. None: there is no choice, the log is what it is.
    """
    if not own or own[0].parent != below:
        return None
    usable = taken[:num_replayable]
    goes_back = not is_better(Branch(own[0].round, tuple(usable)), own)
    return Choice(own[0].round, tuple(own), tuple(s.entry for s in (taken if goes_back else usable)), goes_back)


def settlement(entry: Entry, in_flight: InFlight | None) -> SettleContribution | None:
    """How an entry that recovery appends settles our contribution in flight; None if it does not name it."""
    if in_flight is None:
        return None
    ours = in_flight.contribution
    if not any(c.peer == ours.peer and c.phase == ours.phase for c in entry.contributions):
        return None
    is_as_voted = in_flight.voted is not None and entry_hash(in_flight.voted) == entry_hash(entry)
    return SettleContribution(ours.phase, RoundIndex(entry.round), True, in_flight.owned if is_as_voted else ())


def dropped_phases(me: PeerId, own: Sequence[Entry], branch: Branch) -> tuple[PhaseId, ...]:
    """Our contributions that a rollback takes out of the chain and the better branch does not have: late contributions,
    to be put back into our error feedback from the payloads that we kept."""
    before = {c.phase for entry in own for c in entry.contributions if c.peer == me}
    after = {c.phase for signed in branch.entries for c in signed.entry.contributions if c.peer == me}
    return tuple(sorted(before - after))
