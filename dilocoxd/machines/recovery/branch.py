"""Decides what to believe of another peer's chain, and whether it is better than ours. Pure.

The driver fetches and applies (daemon/recovery/driver.py; the simulator has its own). An entry is acceptable to a
stranger when it continues the chain, keeps the caps of R7, counts no (peer, phase) twice, and carries at least one
vote, all of them valid and from its contributors; with `quorum = majority` from more than half of the peers that
contributed lately. Votes bind the payload by its hashes and the state by its digest. Source: protocol/06-rounds.md,
R20, R21, R27.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId, PhaseId
from dilocoxd.machines.chain import ChainView, entry_tokens
from dilocoxd.machines.limits import RoundLimits, VoteKeys
from dilocoxd.machines.peers.double_votes import is_proved
from dilocoxd.machines.round.grouping import evidence_problem, missing_majority, probation_problem, unseconded
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash, voted_for


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
        if entry.parent_voters != view.tip_voters:
            raise WireError("malformed", f"entry {entry.round} names others than contributed to the entry before")
        if limits.is_complete(view.weight):
            raise WireError("malformed", f"entry {entry.round} comes after the end of the run (R24)")
        _check_claims(entry, view.last_phases, limits)
        _check_votes(signed, keys)
        _check_evidence(entry, view, keys)
        _check_probation(signed, view)
        if limits.has_majority_quorum:
            voters = frozenset(vote.peer for vote in signed.votes)
            reason = missing_majority(voters, view.electorate(entry.evidence))
            if reason:
                raise WireError("bad_quorum", f"entry {entry.round}: {reason}")
        view = view.extended(entry, Digest(bytes(32)))
        _check_checkpoint(view, limits)
    if limits.checkpoint is not None and base.height < limits.checkpoint[0] and view.height < limits.checkpoint[0]:
        raise WireError("wrong_run", f"the chain ends before entry {limits.checkpoint[0]}, which the join link names")


def _check_checkpoint(view: ChainView, limits: RoundLimits) -> None:
    if limits.checkpoint is None or view.height != limits.checkpoint[0]:
        return
    if view.head != limits.checkpoint[1]:
        raise WireError("wrong_run", f"at height {view.height} this is not the chain that the join link names")


def _check_claims(entry: Entry, last_phases: Mapping[PeerId, PhaseId], limits: RoundLimits) -> None:
    if (count := len(entry.contributions)) > limits.contributors_max:
        raise WireError("out_of_range", f"entry {entry.round} names {count} sites, at most {limits.contributors_max}")
    for contribution in entry.contributions:
        is_bounded = contribution.tokens <= limits.tokens_max and contribution.inner_steps <= limits.inner_steps_max
        if not is_bounded or contribution.base_round > entry.round:
            raise WireError("out_of_range", f"entry {entry.round}: claim of {contribution.peer} is over the caps")
        if (age := entry.round - contribution.base_round) > limits.contribution_age_max:
            raise WireError("out_of_range", f"entry {entry.round}: base of {contribution.peer} is {age} rounds old")
        if last_phases.get(contribution.peer, -1) >= contribution.phase:
            raise WireError("malformed", f"entry {entry.round} counts {contribution.peer} twice")


def _check_votes(signed: SignedEntry, keys: VoteKeys) -> None:
    entry, digest = signed.entry, entry_hash(signed.entry)
    contributors = {contribution.peer for contribution in entry.contributions}
    for vote in signed.votes:
        if vote.peer not in contributors or not keys.is_genuine(vote, voted_for(entry, digest, vote.attempt)):
            raise WireError("bad_signature", f"entry {entry.round}: vote of {vote.peer} is not valid")
    for contribution, offer in zip(entry.contributions, signed.offers, strict=True):
        if not keys.is_offered(contribution, offer):
            raise WireError("bad_offer", f"entry {entry.round} names {contribution.peer}, who did not offer that")


def _check_evidence(entry: Entry, view: ChainView, keys: VoteKeys) -> None:
    if problem := evidence_problem([c.peer for c in entry.contributions], entry.evidence, view):
        raise WireError("bad_evidence", f"entry {entry.round}: {problem}")
    for found in entry.evidence:
        if not is_proved(found, keys):
            raise WireError("bad_evidence", f"entry {entry.round}: what it holds against {found.peer} proves nothing")


def _check_probation(signed: SignedEntry, view: ChainView) -> None:
    """M11: an entry needs somebody who is not on probation, among those it names and among its voters."""
    entry = signed.entry
    peers = [contribution.peer for contribution in entry.contributions]
    if entry.ramps != view.ramps(peers):
        raise WireError("malformed", f"entry {entry.round} weighs peers otherwise than their probation says")
    voters = frozenset(vote.peer for vote in signed.votes)
    if problem := probation_problem(peers, view) or unseconded(voters, view):
        raise WireError("bad_quorum", f"entry {entry.round}: {problem}")


def is_better(branch: Branch, own: Sequence[Entry], reverted: Set[Digest] = frozenset()) -> bool:
    """Fork choice: more tokens since the fork (`own` are our entries); on a tie the smaller hash of the first entry.
    Before that, a branch with an entry that was `reverted` loses against one without (R29)."""
    if not branch.entries or not reverted.isdisjoint(entry_hash(signed.entry) for signed in branch.entries):
        return False
    if not own or not reverted.isdisjoint(entry_hash(entry) for entry in own):
        return True
    theirs, ours = branch.tokens, sum(entry_tokens(entry) for entry in own)
    if theirs != ours:
        return theirs > ours
    return entry_hash(branch.entries[0].entry) < entry_hash(own[0])
