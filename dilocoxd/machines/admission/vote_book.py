"""The votes of members on questions that are not decided yet, one of each voter on each question (protocol M7, M9).

A question is the end of a membership, or other authorities. Bounded, because a vote costs nothing: by questions, by
votes on each, by votes of each voter, and by those that wait for entries that we lack. Counted in eviction.py.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.eviction import VOTE_ENTRIES, Contributors, VoteCount
from dilocoxd.wire.admission import VOTES_MAX, MemberVote
from dilocoxd.wire.entry import Signature

UNDECIDED_MAX: Final = 256
VOTES_OF_ONE_MAX: Final = 16
"""On so many questions one peer may have a vote at a time."""
RENEW_ENTRIES: Final = 64
"""A vote takes the place of another of its voter only so many entries later: each one is told to everybody."""
WAITING_MAX: Final = 64

Question = TypeVar("Question", bound=Hashable)
Votes = tuple[MemberVote, ...]
Verify = Callable[[PeerId, Signature, bytes], bool]
"""Whether the signature of an identity fits peer and text."""


@dataclass(frozen=True, slots=True)
class VoteRules(Generic[Question]):
    """What depends on the kind of question."""

    text: Callable[[Question, int, bytes], bytes]
    """What a voter signs at this height and head."""
    verify: Verify
    is_in_time: Callable[[PeerId], bool]
    """Whether another vote of this peer, which is genuine and news, is taken up now; asked once for each."""
    may_vote: Callable[[PeerId], bool]
    is_open: Callable[[Question], bool]
    """Whether it can be voted on here."""
    tally: Callable[[Question, Sequence[MemberVote], Contributors], VoteCount | None]


@dataclass(slots=True)
class VoteBook(Generic[Question]):
    """Genuine votes. Whether one counts depends on the chain."""

    rules: VoteRules[Question]
    votes: dict[Question, dict[PeerId, MemberVote]] = field(default_factory=dict)
    waiting: dict[tuple[Question, Votes], None] = field(default_factory=dict)
    """On entries that we do not have yet: WAITING_MAX, oldest first."""

    def cast(self, question: Question, votes: Votes, chain: Contributors | None) -> Votes:
        """Keep what is news and may count, and return it. `chain` None: it is not loaded yet.

        A vote that stands is better than one that does not, and of two others the newer by RENEW_ENTRIES: so no voter
        has an endless row of votes that are each better than the one before. Raises WireError(bad_signature).
        """
        if chain is None or newest(votes) > chain.height:
            self._keep_for_later(question, votes)
            return ()
        if not self.rules.is_open(question):
            return ()
        if len(votes) > 1 and is_enough(self.rules.tally(question, votes, chain)):
            # Decided elsewhere; a voter that has voted again since, at another height, does not undo that.
            self.check_all(question, votes)
            self.hold(question, votes)
            return votes
        return self._add(question, votes, chain)

    def _add(self, question: Question, votes: Votes, chain: Contributors) -> Votes:
        kept = self.votes.get(question, {})
        news = [vote for vote in votes if self._may_count(vote, chain) and _is_better(vote, kept.get(vote.peer), chain)]
        for vote in news:
            self._check_signature(question, vote)
        news = [vote for vote in news if self._has_room(question, vote.peer) and self.rules.is_in_time(vote.peer)]
        for vote in news:
            self.votes.setdefault(question, {})[vote.peer] = vote
        return tuple(news)

    def _may_count(self, vote: MemberVote, chain: Contributors) -> bool:
        return self.rules.may_vote(vote.peer) and not _is_too_old(vote, chain.height)

    def check_all(self, question: Question, votes: Votes) -> None:
        """Whether all of them are genuine. Raises WireError(bad_signature)."""
        for vote in votes:
            self._check_signature(question, vote)

    def _check_signature(self, question: Question, vote: MemberVote) -> None:
        if not self.rules.verify(vote.peer, vote.signature, self.rules.text(question, vote.height, vote.head)):
            raise WireError("bad_signature", f"the vote of {vote.peer} is not signed with its key")

    def _has_room(self, question: Question, voter: PeerId) -> bool:
        kept = self.votes.get(question)
        if kept is not None and voter in kept:
            return True
        if sum(voter in votes for votes in self.votes.values()) >= VOTES_OF_ONE_MAX:
            return False
        return len(self.votes) < UNDECIDED_MAX if kept is None else len(kept) < VOTES_MAX

    def _keep_for_later(self, question: Question, votes: Votes) -> None:
        if (question, votes) in self.waiting:
            return
        oldest = self._to_give_up() if len(self.waiting) >= WAITING_MAX else None
        if oldest is not None and self._is_of_member(oldest[1]) and not self._is_of_member(votes):
            return
        self.check_all(question, votes)
        self.waiting[question, votes] = None
        if oldest is not None:
            del self.waiting[oldest]

    def _to_give_up(self) -> tuple[Question, Votes]:
        """The oldest that only strangers signed, for keys cost nothing; or else the oldest."""
        of_strangers = (one for one in self.waiting if not self._is_of_member(one[1]))
        return next(of_strangers, next(iter(self.waiting)))

    def _is_of_member(self, votes: Votes) -> bool:
        return any(self.rules.may_vote(vote.peer) for vote in votes)

    def take_waiting(self, height: int) -> list[tuple[Question, Votes]]:
        """Those that a chain of `height` entries reaches; they wait no more."""
        found = [one for one in self.waiting if newest(one[1]) <= height]
        for one in found:
            del self.waiting[one]
        return found

    def hold(self, question: Question, votes: Votes) -> None:
        """Keep exactly these votes; their signatures were checked."""
        self.votes[question] = {vote.peer: vote for vote in votes}

    def drop(self, question: Question) -> None:
        """It is decided."""
        self.votes.pop(question, None)

    def prune(self, height: int) -> None:
        """Forget votes that can count no more on a chain of `height` entries, whatever is voted from now on."""
        for question, votes in list(self.votes.items()):
            left = {peer: vote for peer, vote in votes.items() if not _is_too_old(vote, height)}
            if left:
                self.votes[question] = left
            else:
                del self.votes[question]

    def on(self, question: Question) -> Votes:
        """All votes on this question, sorted by voter, as they are sent and kept."""
        votes = self.votes.get(question, {})
        return tuple(votes[peer] for peer in sorted(votes))


def newest(votes: Votes) -> int:
    """Greatest height that was voted at; 0 without votes."""
    return max((vote.height for vote in votes), default=0)


def is_enough(found: VoteCount | None) -> bool:
    """Whether the count decides."""
    return found is not None and found.is_decided


def stands(vote: MemberVote, chain: Contributors) -> bool:
    """Whether it is about this chain."""
    return chain.hash_at(vote.height) == vote.head


def _is_too_old(vote: MemberVote, height: int) -> bool:
    return vote.height + 2 * VOTE_ENTRIES <= height


def _is_better(vote: MemberVote, known: MemberVote | None, chain: Contributors) -> bool:
    if known is None:
        return True
    if stands(vote, chain) != stands(known, chain):
        return stands(vote, chain)
    return vote.height >= known.height + RENEW_ENTRIES
