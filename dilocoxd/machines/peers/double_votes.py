"""Votes that were seen, and the evidence when two of them contradict each other: one peer, one round, attempt and
parent, two entries.

Nobody who keeps its promises votes twice in an attempt (R3), so two such votes prove, to whoever has them, that a peer
lies, that its identity runs twice, or that its disk was rolled back. Source: protocol/06-rounds.md, R27.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.chain import EVIDENCE_AGE_MAX, ChainView
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.wire.entry import (
    EVIDENCE_MAX,
    Evidence,
    Signature,
    SignedEntry,
    SignedVote,
    VotedEntry,
    VoteFor,
    entry_hash,
    voted_for,
)

VOTES_KEPT: Final = 32
"""Newest votes of one peer that later ones are compared with."""
VOTERS_KEPT: Final = 256
"""Peers whose votes are kept; whom the chain names always has room."""
PROOFS_KEPT: Final = 64
"""Peers against whom evidence is held."""
_Cast = tuple[Digest, SignedVote]


def is_proved(evidence: Evidence, keys: VoteKeys) -> bool:
    """Whether the peer signed both votes, and they are for different entries, in the order that makes it one proof."""
    return evidence.first.entry_hash < evidence.second.entry_hash and all(
        keys.is_genuine(
            SignedVote(evidence.peer, evidence.attempt, voted.unix_ms, Signature(evidence.public_key, voted.signature)),
            VoteFor(evidence.round, evidence.attempt, evidence.parent, voted.entry_hash),
        )
        for voted in (evidence.first, evidence.second)
    )


class DoubleVotes:
    """As long as the process lives. Bounded by the constants above."""

    def __init__(self) -> None:
        self.cast: dict[PeerId, OrderedDict[tuple[RoundIndex, Attempt, Digest], _Cast]] = {}
        """Right votes, by (round, attempt, parent)."""
        self.proofs: dict[PeerId, Evidence] = {}
        """The newest one against each peer."""
        self.untold: list[Evidence] = []
        """New since they were told last."""
        self._checked: OrderedDict[Evidence, bool] = OrderedDict()
        """Of the newest that were looked at: whether they prove anything."""

    def saw(self, chain: ChainView, what: VoteFor, vote: SignedVote) -> bool:
        """Remember a right vote. True if it contradicts one that we know: then there is evidence."""
        votes = self.cast.get(vote.peer)
        if votes is None:
            if len(self.cast) >= VOTERS_KEPT and vote.peer not in chain.last_phases:
                return False
            votes = self.cast[vote.peer] = OrderedDict()
        place = (what.round, what.attempt, Digest(what.parent))
        digest, known = votes.setdefault(place, (Digest(what.entry_hash), vote))
        if digest != what.entry_hash:
            self._add(_evidence(what, digest, known, vote), chain)
            return True
        if len(votes) > VOTES_KEPT:
            votes.popitem(last=False)
        return False

    def is_contrary(self, what: VoteFor, peer: PeerId) -> bool:
        """Whether a vote of this peer contradicts one that we know, should it be right."""
        votes = self.cast.get(peer)
        known = votes.get((what.round, what.attempt, Digest(what.parent))) if votes is not None else None
        return known is not None and known[0] != what.entry_hash

    def read(self, chain: ChainView, entries: Sequence[SignedEntry], keys: VoteKeys) -> None:
        """Compare the votes of entries that others gave us, and take the evidence that is in them."""
        for signed in entries:
            digest = entry_hash(signed.entry)
            for vote in signed.votes:
                what = voted_for(signed.entry, digest, vote.attempt)
                if not self.is_contrary(what, vote.peer) or keys.is_genuine(vote, what):
                    self.saw(chain, what, vote)
            for evidence in signed.entry.evidence:
                self.hear(evidence, chain, keys)

    def hear(self, evidence: Evidence, chain: ChainView, keys: VoteKeys) -> bool:
        """Somebody shows evidence; False if it proves nothing. One that says nothing new is not checked."""
        if not self._is_news(evidence, chain):
            return True
        if not self.proves(evidence, keys):
            return False
        self._add(evidence, chain)
        return True

    def proves(self, evidence: Evidence, keys: VoteKeys) -> bool:
        """As `is_proved`, which takes two signatures; the same one is looked at once."""
        if evidence not in self._checked:
            self._checked[evidence] = is_proved(evidence, keys)
            if len(self._checked) > PROOFS_KEPT:
                self._checked.popitem(last=False)
        return self._checked[evidence]

    def pending(self, chain: ChainView) -> tuple[Evidence, ...]:
        """What the next entry should hold: sorted by peer, and no more than it may."""
        if not self.proofs:
            return ()  # as a rule: this is asked at every event
        found = [evidence for evidence in self.proofs.values() if not chain.evidence_problem(evidence)]
        return tuple(sorted(found, key=lambda one: one.peer)[:EVIDENCE_MAX])

    def take_untold(self) -> tuple[Evidence, ...]:
        """What is new, once."""
        if not self.untold:
            return ()  # as a rule: this is asked at every event
        found, self.untold = tuple(self.untold), []
        return found

    def _is_news(self, evidence: Evidence, chain: ChainView) -> bool:
        """One proof against a peer is enough until it is over: a liar could make new ones without end. Whom no entry
        names counts for nothing anyway, and costs nothing to make up."""
        if evidence.peer not in chain.last_phases:
            return False
        known = self.proofs.get(evidence.peer)
        if known is not None and chain.height - known.round <= EVIDENCE_AGE_MAX:
            return False
        return -1 <= chain.height - evidence.round <= EVIDENCE_AGE_MAX

    def _add(self, evidence: Evidence, chain: ChainView) -> None:
        if not self._is_news(evidence, chain):
            return
        if evidence.peer not in self.proofs and len(self.proofs) >= PROOFS_KEPT:
            oldest = min(self.proofs.values(), key=lambda one: one.round)
            if oldest.round >= evidence.round:
                return
            del self.proofs[oldest.peer]
        self.proofs[evidence.peer] = evidence
        self.untold.append(evidence)


def _evidence(what: VoteFor, digest: Digest, known: SignedVote, vote: SignedVote) -> Evidence:
    pair = ((digest, known), (Digest(what.entry_hash), vote))
    first, second = sorted(pair, key=lambda one: one[0])
    return Evidence(
        peer=vote.peer,
        public_key=vote.signature.public_key,
        round=what.round,
        attempt=what.attempt,
        parent=what.parent,
        first=VotedEntry(first[0], first[1].unix_ms, first[1].signature.value),
        second=VotedEntry(second[0], second[1].unix_ms, second[1].signature.value),
    )
