"""The votes of members on evictions that are not decided yet, one of each voter about each membership (protocol M7).

Bounded, because a vote costs nothing: by memberships, by votes on each, and by votes of each voter. They are counted
in eviction.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.eviction import VOTE_ENTRIES
from dilocoxd.wire.admission import EVICTION_VOTES_MAX, EvictionVote, Revocation, RevocationTerms, eviction_text
from dilocoxd.wire.entry import Signature

UNDECIDED_MAX: Final = 256
VOTES_OF_ONE_MAX: Final = 16
"""On so many memberships one peer may have a vote at a time."""
RENEW_ENTRIES: Final = 64
"""A vote takes the place of another of its voter only so many entries later: each one is told to everybody."""

Membership = tuple[PeerId, int]
"""Of which peer, by the invite with which serial."""
Verify = Callable[[PeerId, Signature, bytes], bool]
"""Whether the signature of an identity fits peer and text."""
Asked = Callable[[EvictionVote], bool]


@dataclass(slots=True)
class VoteBook:
    """Genuine votes. Whether one counts depends on the chain, so callers say it."""

    run: bytes
    verify: Verify
    is_in_time: Callable[[PeerId], bool] = lambda voter: True
    """Whether another vote of this peer, which is genuine and news, is taken up now; asked once for each."""
    votes: dict[Membership, dict[PeerId, EvictionVote]] = field(default_factory=dict)

    def add(self, revocation: Revocation, may_count: Asked, stands: Asked) -> tuple[EvictionVote, ...]:
        """Keep its votes that are news and may count, and return them.

        `may_count`: its voter may vote, and it is not too old. `stands`: it is about our chain. A vote that stands is
        better than one that does not, and of two others the newer by RENEW_ENTRIES: so no voter has an endless row of
        votes that are each better than the one before. Raises WireError(wrong_run | bad_signature).
        """
        self._check_run(revocation)
        terms = revocation.terms
        key = (terms.peer, terms.serial)
        kept = self.votes.get(key, {})
        news = [vote for vote in revocation.votes if may_count(vote) and _is_better(vote, kept.get(vote.peer), stands)]
        for vote in news:
            self._check_signature(terms, vote)
        news = [vote for vote in news if self._has_room(key, vote.peer) and self.is_in_time(vote.peer)]
        for vote in news:
            self.votes.setdefault(key, {})[vote.peer] = vote
        return tuple(news)

    def check_all(self, revocation: Revocation) -> None:
        """Whether all its votes are genuine. Raises WireError(wrong_run | bad_signature)."""
        self._check_run(revocation)
        for vote in revocation.votes:
            self._check_signature(revocation.terms, vote)

    def _check_run(self, revocation: Revocation) -> None:
        if revocation.terms.run != self.run:
            raise WireError("wrong_run", "the votes belong to another run")

    def _check_signature(self, terms: RevocationTerms, vote: EvictionVote) -> None:
        if not self.verify(vote.peer, vote.signature, eviction_text(terms, vote.height, vote.head)):
            raise WireError("bad_signature", f"the vote of {vote.peer} is not signed with its key")

    def _has_room(self, key: Membership, voter: PeerId) -> bool:
        kept = self.votes.get(key)
        if kept is not None and voter in kept:
            return True
        if sum(voter in votes for votes in self.votes.values()) >= VOTES_OF_ONE_MAX:
            return False
        return len(self.votes) < UNDECIDED_MAX if kept is None else len(kept) < EVICTION_VOTES_MAX

    def hold(self, revocation: Revocation) -> None:
        """Keep exactly its votes about its membership; their signatures were checked."""
        key = (revocation.terms.peer, revocation.terms.serial)
        self.votes[key] = {vote.peer: vote for vote in revocation.votes}

    def drop(self, key: Membership) -> None:
        """The membership has ended."""
        self.votes.pop(key, None)

    def prune(self, height: int) -> None:
        """Forget votes that can count no more on a chain of `height` entries, whatever is voted from now on."""
        for key, votes in list(self.votes.items()):
            left = {peer: vote for peer, vote in votes.items() if not is_too_old(vote, height)}
            if left:
                self.votes[key] = left
            else:
                del self.votes[key]

    def revocation(self, key: Membership) -> Revocation:
        """All votes about this membership, as they are sent and kept."""
        votes = self.votes[key]
        return Revocation(RevocationTerms(self.run, *key), (), tuple(votes[peer] for peer in sorted(votes)))


def is_too_old(vote: EvictionVote, height: int) -> bool:
    """Whether it can count no more on a chain of `height` entries, whatever is voted from now on."""
    return vote.height + 2 * VOTE_ENTRIES <= height


def _is_better(vote: EvictionVote, known: EvictionVote | None, stands: Asked) -> bool:
    if known is None:
        return True
    if stands(vote) != stands(known):
        return stands(vote)
    return vote.height >= known.height + RENEW_ENTRIES
