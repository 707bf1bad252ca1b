"""Who the authorities of a run are now: the manifest's list, and the changes of it that are in force.

Changes form a tree: each names the one before it. Sites with one chain and the same changes follow the same branch:
what members decided goes before what authorities signed, what was decided at a greater height before the rest, and
else the smaller hash. So a thief who signs another change with stolen keys is beaten by two thirds of the members, and
an old majority by the present one. Source: protocol/03-identity.md, M8 to M10.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities
from dilocoxd.machines.admission.eviction import Contributors, VoteCount, tally
from dilocoxd.machines.admission.vote_book import Verify, VoteBook, VoteRules, Votes, newest
from dilocoxd.wire.admission import AuthoritySignature, MemberVote
from dilocoxd.wire.authorities import (
    AuthorityChange,
    AuthorityTerms,
    authorities_text,
    change_hash,
    replacement_text,
)

SIBLINGS_MAX: Final = 4
"""Signed changes of one list that are kept: the smallest hashes."""
KNOWN_MAX: Final = 256


@dataclass(slots=True)
class KnownChange:
    """A genuine change: signed by the list before it, voted by members, or both."""

    terms: AuthorityTerms
    hash: bytes
    signatures: tuple[AuthoritySignature, ...] = ()
    votes: Votes = ()
    """Those that decide; empty: members did not decide it."""
    height: int = 0
    """Where they decide; before the chain is there, the greatest that was voted at."""

    @property
    def is_decided(self) -> bool:
        """By either."""
        return bool(self.signatures or self.votes)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Of changes of one list the one with the greatest is in force."""
        return bool(self.votes), self.height if self.votes else 0, -int.from_bytes(self.hash, "big")

    @property
    def authorities(self) -> Authorities:
        """The list that it makes."""
        terms = self.terms
        return Authorities(terms.run, terms.keys, terms.threshold, terms.number, self.hash)

    def as_sent(self) -> tuple[AuthorityChange, ...]:
        """The change for others: with its signatures, with its votes."""
        signed = (AuthorityChange(self.terms, self.signatures, ()),) if self.signatures else ()
        return (*signed, AuthorityChange(self.terms, (), self.votes)) if self.votes else signed


@dataclass(slots=True)
class AuthorityBook:
    """Never holds more than KNOWN_MAX changes, nor votes beyond the bounds of VoteBook."""

    manifest: Authorities
    verify: Verify
    is_in_time: Callable[[PeerId], bool]
    may_vote: Callable[[PeerId], bool]
    changes: dict[bytes, KnownChange] = field(default_factory=dict)
    in_force: tuple[KnownChange, ...] = ()
    """One after the other, from number 1 on."""
    undecided: VoteBook[AuthorityTerms] = field(init=False)

    def __post_init__(self) -> None:
        rules = VoteRules(replacement_text, self.verify, self.is_in_time, self.may_vote, self._is_open, _tally)
        self.undecided = VoteBook(rules)

    @property
    def now(self) -> Authorities:
        """The list that is in force."""
        return self.in_force[-1].authorities if self.in_force else self.manifest

    def list_of(self, listed: bytes) -> Authorities | None:
        """The list that certificates name so; None: we do not know it."""
        if listed == self.manifest.run:
            return self.manifest
        found = self.changes.get(listed)
        return found.authorities if found is not None else None

    def way_to(self, listed: bytes) -> tuple[KnownChange, ...]:
        """The changes from the manifest to this list, in order; empty for the manifest's own."""
        found: list[KnownChange] = []
        while listed in self.changes:
            found.insert(0, self.changes[listed])
            listed = found[0].terms.before
        return tuple(found)

    def lists(self) -> tuple[Authorities, ...]:
        """All that we know, the one in force first."""
        known = sorted(self.changes.values(), key=lambda one: one not in self.in_force)
        return (self.now, self.manifest, *(one.authorities for one in known))

    def void_from(self, listed: bytes) -> int | None:
        """On a chain of so many entries an invite of this list admits nobody new; None: it is good.

        A list that is not in force nor was on the way to it is void from the first entry on.
        """
        hashes = [self.manifest.run, *(one.hash for one in self.in_force)]
        if listed not in hashes:
            return 0
        later = self.in_force[hashes.index(listed) :]
        return min((one.terms.void_from for one in later if one.terms.void_from), default=None)

    def beside(self, terms: AuthorityTerms) -> list[KnownChange]:
        """Signed changes of the list that these terms follow, as far as they are kept."""
        return [one for one in self.changes.values() if one.terms.before == terms.before and one.signatures]

    def rivals(self) -> tuple[KnownChange, ...]:
        """Changes that were signed beside one that is in force: somebody signed two, or has stolen keys."""
        taken = {one.terms.before: one.hash for one in self.in_force}
        rows = self.changes.values()
        return tuple(one for one in rows if one.signatures and taken.get(one.terms.before, one.hash) != one.hash)

    def take(self, change: AuthorityChange, chain: Contributors | None) -> AuthorityChange | None:
        """Keep what of it is genuine and news, and return it; `review` says what follows from it.

        None as well for a change of a list that we do not know, and for a signed one that there is no room for. Raises
        WireError(wrong_run | malformed | bad_certificate | bad_signature).
        """
        terms, before = change.terms, self._list_before(change.terms)
        if change.votes:
            votes = self._take_votes(terms, change.votes, chain)
            return AuthorityChange(terms, (), votes) if votes else None
        return change if before is not None and self._take_signed(change, before) else None

    def _list_before(self, terms: AuthorityTerms) -> Authorities | None:
        """None: we do not know it. Raises WireError(wrong_run | malformed)."""
        if terms.run != self.manifest.run:
            raise WireError("wrong_run", "the change of authorities belongs to another run")
        before = self.list_of(terms.before)
        if before is not None and terms.number != before.number + 1:
            raise WireError("malformed", f"change {terms.number} of the authorities follows number {before.number}")
        return before

    def _take_signed(self, change: AuthorityChange, before: Authorities) -> bool:
        terms, found = change.terms, change_hash(change.terms)
        known = self.changes.get(found)
        if known is not None and known.signatures:
            return False
        beside = self.beside(terms)
        largest = max(beside, key=lambda one: one.hash) if len(beside) >= SIBLINGS_MAX else None
        if largest is not None and found > largest.hash:
            return False
        if known is None and len(self.changes) >= KNOWN_MAX and (largest is None or largest.votes):
            return False
        signed = before.num_signed(authorities_text(terms), change.signatures)
        if not before.is_enough(signed):
            raise WireError(
                "bad_certificate", f"the change is signed by {signed} of the authorities, {before.threshold} decide"
            )
        if largest is not None:
            largest.signatures = ()
            if not largest.votes:
                del self.changes[largest.hash]
        self._known(terms).signatures = change.signatures
        return True

    def _known(self, terms: AuthorityTerms) -> KnownChange:
        found = change_hash(terms)
        if found not in self.changes and len(self.changes) >= KNOWN_MAX:
            raise WireError("busy", f"{KNOWN_MAX} changes of authorities are known already")
        return self.changes.setdefault(found, KnownChange(terms, found))

    def _make_room(self, terms: AuthorityTerms) -> bool:
        """Whether there is room for what members decided: whoever has a key can sign as many changes as we keep."""
        if change_hash(terms) in self.changes or len(self.changes) < KNOWN_MAX:
            return True
        signed = [one for one in self.changes.values() if not one.votes and one.hash != terms.before]
        if signed:
            del self.changes[max(signed, key=lambda one: (one.terms.number, one.hash)).hash]
        return bool(signed)

    def _is_open(self, terms: AuthorityTerms) -> bool:
        before, known = self.list_of(terms.before), self.changes.get(change_hash(terms))
        return before is not None and terms.number == before.number + 1 and (known is None or not known.votes)

    def _take_votes(self, terms: AuthorityTerms, votes: Votes, chain: Contributors | None) -> Votes:
        known = self.changes.get(change_hash(terms))
        if known is None or not known.votes or chain is None or newest(votes) > chain.height:
            return self.undecided.cast(terms, votes, chain)
        found = _tally(terms, votes, chain)
        if found is None or not found.is_decided or found.height <= known.height:
            return ()
        self.undecided.check_all(terms, votes)
        known.votes, known.height = votes, found.height
        return votes

    def recall(self, change: AuthorityChange) -> None:
        """Believe one that was decided before a restart, or that our own invite hangs on, for the chain is not there
        yet. Raises WireError as `take` does, also for votes, and WireError(busy) for more than KNOWN_MAX."""
        if change.votes:
            self._list_before(change.terms)
            self.undecided.check_all(change.terms, change.votes)
            known = self._known(change.terms)
            known.votes, known.height = change.votes, newest(change.votes)
        else:
            self.take(change, None)
        self.follow()

    def recall_votes(self, change: AuthorityChange) -> None:
        """Keep votes that did not decide before a restart. Raises WireError(bad_signature)."""
        self.undecided.check_all(change.terms, change.votes)
        self.undecided.hold(change.terms, change.votes)

    def known(self) -> tuple[AuthorityChange, ...]:
        """All that was decided, each behind the one before it."""
        rows = sorted(self.changes.values(), key=lambda one: (one.terms.number, one.hash))
        return tuple(sent for one in rows for sent in one.as_sent())

    def open_votes(self) -> tuple[AuthorityChange, ...]:
        """Votes that do not decide (yet)."""
        return tuple(AuthorityChange(terms, (), self.undecided.on(terms)) for terms in self.undecided.votes)

    def tally(self, terms: AuthorityTerms, chain: Contributors) -> VoteCount | None:
        """How far the members are; None: no vote counts on this chain."""
        known = self.changes.get(change_hash(terms))
        return _tally(terms, known.votes if known is not None and known.votes else self.undecided.on(terms), chain)

    @property
    def has_any(self) -> bool:
        """Whether `review` can find anything."""
        return bool(self.changes or self.undecided.votes or self.undecided.waiting)

    def review(self, chain: Contributors) -> bool:
        """Count again: chain, changes or votes are other ones. Whether other authorities are in force now."""
        for terms, votes in self.undecided.take_waiting(chain.height):
            self._take_votes(terms, votes, chain)
        for known in self.changes.values():
            # What was voted on entries that we lack, after a rollback or a lost log, stands until they are there.
            if known.votes and newest(known.votes) <= chain.height:
                self._judge(known, chain)
        for terms in list(self.undecided.votes):
            found = _tally(terms, self.undecided.on(terms), chain)
            if found is not None and found.is_decided and self._is_open(terms) and self._make_room(terms):
                known = self._known(terms)
                known.votes, known.height = self.undecided.on(terms), found.height
                self.undecided.drop(terms)
        self.undecided.prune(chain.height)
        return self.follow()

    def _judge(self, known: KnownChange, chain: Contributors) -> None:
        found = _tally(known.terms, known.votes, chain)
        if found is not None and found.is_decided:
            known.height = found.height
        else:
            self.undecided.hold(known.terms, known.votes)
            known.votes, known.height = (), 0

    def follow(self) -> bool:
        """Forget what nobody decided and what hangs on it, and walk to the list that is in force; whether that is
        another one. `review` does it too, where there is a chain to count by."""
        reached: list[KnownChange] = []
        path: list[KnownChange] = []
        lists = [self.manifest.run]
        while lists:
            before = lists.pop()
            children = [one for one in self.changes.values() if one.terms.before == before and one.is_decided]
            reached += children
            lists += [one.hash for one in children]
        self.changes = {one.hash: one for one in reached}
        before = self.manifest.run
        while children := [one for one in reached if one.terms.before == before]:
            path.append(max(children, key=lambda one: one.rank))
            before = path[-1].hash
        was, self.in_force = self.in_force, tuple(path)
        return [one.hash for one in was] != [one.hash for one in path]


def recalled(manifest: Authorities, changes: Iterable[AuthorityChange], verify: Verify) -> AuthorityBook:
    """The book of a site whose chain is not loaded: what was decided is believed if its signatures are genuine.

    Raises WireError.
    """
    book = AuthorityBook(manifest, verify, lambda voter: True, lambda peer: True)
    for change in sorted(changes, key=lambda one: one.terms.number):
        book.recall(change)
    return book


def _tally(terms: AuthorityTerms, votes: Sequence[MemberVote], chain: Contributors) -> VoteCount | None:
    return tally(None, votes, chain)
