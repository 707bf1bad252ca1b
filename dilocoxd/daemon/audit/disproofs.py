"""What follows when a result was found false here: it is told and shown to the others, voted against, its owner named.

What others tell is worth nothing until this site has summed what they show itself. Rules: protocol/07-exchange.md, X14;
protocol/06-rounds.md, R29. Whether it was found by our own audit or shown by another site makes no difference.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dilocoxd.daemon.audit.inputs import AuditedEntry
from dilocoxd.daemon.audit.shelf import ProofShelf
from dilocoxd.errors import CommandRefused, StoreError
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.audit.claims import Accusation, Claims
from dilocoxd.machines.chain import RECENT_ENTRIES
from dilocoxd.machines.round.inputs import EntryFalse
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.audit import ShareProof
from dilocoxd.wire.entry import SignedEntry, entry_hash
from dilocoxd.wire.messages import FalseSum


class Outside(Protocol):
    """Who hears of what is found."""

    def tell(self, event: Any) -> None:
        """The round machine."""

    def broadcast(self, message: Any) -> None:
        """All live peers."""

    def count_bad(self, peer: PeerId, rule: str, detail: str) -> None:
        """The book of offences."""


class Nobody:
    """While nothing runs."""

    def tell(self, event: Any) -> None:
        """Forgotten."""

    def broadcast(self, message: Any) -> None:
        """Forgotten."""

    def count_bad(self, peer: PeerId, rule: str, detail: str) -> None:
        """Forgotten."""


@dataclass(frozen=True, slots=True)
class Disproof:
    """A result that is false."""

    round: RoundIndex
    entry_hash: Digest
    segment: int


class Disproofs:
    """Of one daemon in a run that audits."""

    def __init__(
        self,
        me: PeerId,
        evict: Callable[[PeerId, RoundIndex], str],
        log: EntryLog,
        shelf: ProofShelf,
    ) -> None:
        """`evict`: votes against a member, as one of those who contributed before this round; returns what came of it,
        or raises CommandRefused."""
        self.claims = Claims()
        self.outside: Outside = Nobody()
        self._me = me
        self._evict = evict
        self._log = log
        self._shelf = shelf
        self._found: list[Disproof] = []
        self._told_of: OrderedDict[Digest, SignedEntry] = OrderedDict()
        """The newest entries of our chain that somebody told of; it may have left them since."""

    def certain_owner(self, audited: AuditedEntry, segment: int) -> str:
        """Who reduced it by the proposal that we took up, and signed with its vote that this is what it returned. Who
        did not vote may have been proposed another group by the same coordinator, and have summed that."""
        owner = audited.owner(segment)
        return owner if audited.voted(owner) else ""

    def found(self, audited: AuditedEntry, segment: int, kept: Path | None, shares: tuple[ShareProof, ...]) -> str:
        """A result of this entry is false; `kept`: folder of its evidence. What follows for the owner, one sentence for
        people. Where the entry was taken back while it was summed here, its owner is as certain as before, and out only
        if enough sites say so."""
        digest, number = entry_hash(audited.entry), audited.entry.round
        one = Disproof(number, digest, segment)
        is_ours = self.holds(one)
        if not is_ours and not audited.votes:
            return "the entry is in no chain: this site does not vote for it"
        certain = self.certain_owner(audited, segment)
        self.claims.proved(digest, audited.owner(segment))
        if kept is not None:
            self._shelf.put(digest, segment, kept, shares)
            self._found = [*self._found[-RECENT_ENTRIES:], one]
        self.outside.tell(EntryFalse(number, digest, (PeerId(certain),) if certain else ()))
        if kept is not None:
            self._say(one)
        follows = self._vote_out(certain, number)
        return follows if is_ours else f"the entry has left our chain meanwhile; {follows}"

    def _vote_out(self, certain: str, number: RoundIndex) -> str:
        if not certain:
            return "its owner did not vote for the entry, or is not known here, so nobody is accused of it"
        if certain == self._me:
            return "that is this site: its memory, its build or its daemon errs"
        try:
            return self._evict(PeerId(certain), number)
        except CommandRefused as refused:
            return f"no vote to evict it: {refused}"

    def entry_came(self, height: int) -> None:
        """Our chain has `height` entries: say again what others may not have heard, of entries that it still has and
        that can still be taken back."""
        self._found = [one for one in self._found if height - RECENT_ENTRIES <= one.round and self.holds(one)]
        for one in self._found:
            self._say(one)

    def holds(self, one: Disproof | Accusation) -> bool:
        """Whether our chain has its entry."""
        return one.round < self._log.height and self._log.hash_at(one.round + 1) == one.entry_hash

    def _say(self, one: Disproof) -> None:
        self.outside.broadcast(FalseSum(one.round, one.entry_hash, one.segment))

    def hear(self, peer: PeerId, message: FalseSum, owner: str, height: int) -> bool:
        """Another site tells of one; whether it is to be looked at."""
        claim = Accusation(peer, message.round, Digest(message.entry_hash), message.segment)
        if not self.holds(claim):
            return False
        return self.claims.hear(replace(claim, is_known=peer in self._counted(claim)), owner, height)

    def _counted(self, claim: Accusation) -> frozenset[str]:
        """Who contributed to this entry of our log and was not on probation."""
        if claim.entry_hash not in self._told_of:
            try:
                self._told_of[claim.entry_hash] = self._log.entry(claim.round)
            except StoreError:
                return frozenset()
            while len(self._told_of) > RECENT_ENTRIES:
                self._told_of.popitem(last=False)
        return frozenset(named.peer for named in self._told_of[claim.entry_hash].entry.counted)

    def told_of(self, claim: Accusation) -> SignedEntry | None:
        """The entry of this claim, also once our chain has left it."""
        return self._told_of.get(claim.entry_hash)

    def in_vain(self, claim: Accusation, height: int, refuted: str = "") -> None:
        """A claim led to nothing. `refuted`: why what was shown proves nothing; empty: nothing was shown in time."""
        self.claims.in_vain(claim, height, is_refuted=bool(refuted))
        if refuted:
            what = f"segment {claim.segment} of entry {claim.round}: {refuted}"
            self.outside.count_bad(claim.teller, "bad_evidence", what)
