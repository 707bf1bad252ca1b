"""Entries that spoiled the model, or have a false result: who votes that one be taken back, and which ones a majority
has decided about.

Votes of more than half of those who could vote below the entry, counted by its own chain, are a certificate: whoever
holds it leaves the entry, and never takes it again. A minority never has one, whatever it claims.
Source: protocol/06-rounds.md, R29; docs/adr/0031.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Final

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import Ourselves, VoteKeys
from dilocoxd.wire.entry import SignedVote, taken_back
from dilocoxd.wire.messages import TakeBack

VOTE_DEPTH: Final = 4
"""Only for the newest entries of its chain a site votes that they be taken back; older ones are the operator's."""
ROUNDS_COUNTED: Final = 64
IN_ROUNDS_MAX: Final = 3
"""So many that spoiled the model are taken back in so many rounds; then the run waits for its operator. An entry that
others took back is one of them unless we found a result of it false."""
FALSE_IN_ROUNDS_MAX: Final = 6
"""As IN_ROUNDS_MAX, for those in which we found a result false: the run goes on without who made it."""
DECIDED_IN_ROUNDS_MAX: Final = IN_ROUNDS_MAX + FALSE_IN_ROUNDS_MAX
"""Of both together, whatever who found: a bound that all who count the same certificates have in common."""
DECIDED_MAX: Final = 16
"""Certificates kept: so many in ROUNDS_COUNTED but one, and one for each of the last RECENT_ENTRIES entries, for there
may be votes against all of these by then."""
DEAD_MAX: Final = 64
ATTEMPTS_EACH: Final = 1 << 16
"""Attempts of a round begin so much later for each of its entries that was taken back: nobody votes where it may have
voted before, whatever a restart has forgotten."""


def is_decided(voters: Iterable[PeerId], electorate: frozenset[PeerId]) -> bool:
    """Whether these voters are enough. Nobody is, where nobody could vote: entry 0 cannot be taken back."""
    return 2 * len(electorate.intersection(voters)) > len(electorate)


def _are_enough(recent: Collection[Digest], false: Container[Digest], *, of_false: bool) -> bool:
    """Whether no other is taken back beside these: of those with a false result, or of those that spoiled the model."""
    alike = [digest for digest in recent if (digest in false) == of_false]
    return len(recent) >= DECIDED_IN_ROUNDS_MAX or len(alike) >= (FALSE_IN_ROUNDS_MAX if of_false else IN_ROUNDS_MAX)


class Reverts:
    """Bounded by the constants above, and by the electorates of the chain."""

    def __init__(self) -> None:
        self.decided: dict[Digest, TakeBack] = {}
        """Certificates, by entry: what `site/reverts` holds."""
        self.dead: dict[Digest, None] = {}
        """Heads of chains that hold such an entry, as far as we know: nobody is ahead of us there."""
        self.votes: dict[Digest, dict[PeerId, SignedVote]] = {}
        """Right ones, for entries of our own chain that nobody has decided about."""
        self._news: list[TakeBack] = []
        """Decided since it was asked last."""
        self._tried: set[Digest] = set()
        """Recovery could not leave it while we stood here: others will bring a branch without it."""

    def load(self, kept: Iterable[TakeBack]) -> None:
        """What was decided before a restart."""
        for message in kept:
            self._decide(message)
        self._news.clear()

    def hear(self, message: TakeBack, chain: ChainView, keys: VoteKeys) -> str:
        """Somebody's votes. Why they are wrong; empty if they are right, or do not concern us."""
        digest = Digest(message.entry_hash)
        electorate = chain.electorate_at(message.round)
        if digest in self.decided or electorate is None:
            return ""
        is_ours = chain.hash_at(message.round) == digest
        known = self.votes.get(digest, {}) if is_ours else {}
        news = {v.peer: v for v in message.votes if v.peer in electorate and v.peer not in known}
        if not is_ours and not is_decided(news, electorate):
            return ""  # nothing is kept of an entry that we do not have
        what = taken_back(message.round, digest)
        for vote in news.values():
            if vote.attempt != what.attempt or not keys.is_genuine(vote, what):
                return f"the vote of {vote.peer} to take entry {message.round} back is not signed by it"
        self._count(message.round, digest, {**known, **news}, electorate, is_ours=is_ours)
        return ""

    def vote(
        self,
        suspected: tuple[RoundIndex | None, RoundIndex],
        chain: ChainView,
        site: Ourselves,
        false: Container[Digest] = (),
    ) -> list[TakeBack]:
        """Our state is spoiled by an entry of rounds [first, end): vote for the oldest, and for those that another
        member votes for, who trained on the state before. `first` None: we do not know. `false`: entries in which we
        found a result false. What is new of it."""
        oldest, end = suspected
        first = max(chain.height - VOTE_DEPTH, oldest if oldest is not None else 0)
        found = []
        for number in range(first, min(end, chain.height)):
            digest, electorate = chain.hash_at(number), chain.electorate_at(number)
            if digest is None or electorate is None or site.me not in electorate or digest in self.decided:
                continue
            known = self.votes.get(digest, {})
            if site.me in known or not (number == oldest or known):
                continue
            if not _are_enough(self._decided_around(number), false, of_false=False):
                found.append(self._cast(RoundIndex(number), digest, electorate, site))
        return found

    def vote_against(self, false: Mapping[Digest, RoundIndex], chain: ChainView, site: Ourselves) -> list[TakeBack]:
        """Of these entries we have found a result false: vote against each that our chain has, if we could vote below
        it. After one was taken back, against the newest alone: all rounds after an entry are lost with it, and an
        accomplice of who made the result may have shown it as late as it liked. What is new of it."""
        found = []
        for digest, number in false.items():
            electorate = chain.electorate_at(number) if chain.hash_at(number) == digest else None
            if electorate is None or site.me not in electorate or digest in self.decided:
                continue
            if site.me in self.votes.get(digest, {}):
                continue
            recent = self._decided_around(number)
            is_late = bool(recent) and chain.height - number > VOTE_DEPTH
            if not is_late and not _are_enough(recent, false, of_false=True):
                found.append(self._cast(number, digest, electorate, site))
        return found

    def _cast(self, number: RoundIndex, digest: Digest, electorate: frozenset[PeerId], site: Ourselves) -> TakeBack:
        signed = site.keys.sign(taken_back(number, digest))
        votes = {**self.votes.get(digest, {}), site.me: signed}
        self._count(number, digest, votes, electorate, is_ours=True)
        return self._told(number, digest)

    def _decided_around(self, number: int) -> list[Digest]:
        """What was taken back of the rounds around this one."""
        return [digest for digest, told in self.decided.items() if abs(told.round - number) < ROUNDS_COUNTED]

    def _count(
        self,
        number: RoundIndex,
        digest: Digest,
        votes: Mapping[PeerId, SignedVote],
        electorate: frozenset[PeerId],
        *,
        is_ours: bool,
    ) -> None:
        if is_decided(votes, electorate):
            self._decide(TakeBack(number, digest, tuple(votes[peer] for peer in sorted(votes))))
        elif is_ours:
            self.votes[digest] = dict(votes)

    def _decide(self, message: TakeBack) -> None:
        self.votes.pop(Digest(message.entry_hash), None)
        self.decided[Digest(message.entry_hash)] = message
        if len(self.decided) > DECIDED_MAX:
            del self.decided[min(self.decided, key=lambda digest: self.decided[digest].round)]
        self._news.append(message)
        self.bury([Digest(message.entry_hash)])

    @property
    def has_news(self) -> bool:
        """Whether `take_news` has any."""
        return bool(self._news)

    def take_news(self) -> list[TakeBack]:
        """What was decided, once."""
        found, self._news = self._news, []
        return found

    def bury(self, heads: Iterable[Digest]) -> None:
        """Nobody goes there any more."""
        self.dead.update(dict.fromkeys(heads))
        while len(self.dead) > DEAD_MAX:
            del self.dead[next(iter(self.dead))]

    # --- what follows

    def due(self, chain: ChainView) -> TakeBack | None:
        """The oldest entry of our chain that is to be left, unless that was tried from here."""
        if not self.decided:
            return None  # as a rule: this is asked at every event
        found = [m for digest, m in self.decided.items() if chain.hash_at(m.round) == digest]
        oldest = min(found, key=lambda message: message.round, default=None)
        return oldest if oldest is not None and Digest(oldest.entry_hash) not in self._tried else None

    def tried(self, message: TakeBack) -> None:
        """Recovery begins to leave it."""
        self._tried.add(Digest(message.entry_hash))

    def reach(self, chain: ChainView) -> None:
        """Our tip moved: votes for entries that are ours no more, or too old, count no more."""
        self._tried.clear()
        near = {chain.hash_at(number) for number in chain.rounds_voted_below}
        self.votes = {digest: votes for digest, votes in self.votes.items() if digest in near}

    def is_void(self, digest: bytes) -> bool:
        """A lock on this entry means nothing: it was taken back. Who is locked on it has not heard of that."""
        return digest in self.decided

    def first_attempt(self, round_index: RoundIndex) -> Attempt:
        """Below it nobody is in this round."""
        if not self.decided:
            return Attempt(0)  # as a rule: this is asked at every event
        return Attempt(ATTEMPTS_EACH * len([m for m in self.decided.values() if m.round == round_index]))

    def open(self, chain: ChainView) -> list[TakeBack]:
        """What is to be said with every Ready: votes that are too few, and certificates until the entry that takes the
        place is there."""
        rounds = {chain.hash_at(number): RoundIndex(number) for number in chain.rounds_voted_below}
        pending = [self._told(rounds[digest], digest) for digest in self.votes if digest in rounds]
        return [*pending, *(m for m in self.decided.values() if chain.height <= m.round + 1)]

    def recent(self, chain: ChainView) -> list[TakeBack]:
        """Certificates that a peer may need that stands near us."""
        return [m for m in self.decided.values() if chain.electorate_at(m.round) is not None]

    def _told(self, number: RoundIndex, digest: Digest) -> TakeBack:
        known = self.decided.get(digest)
        if known is not None:
            return known
        votes = self.votes[digest]
        return TakeBack(number, digest, tuple(votes[peer] for peer in sorted(votes)))
