"""Who is let in: the memberships that this site has accepted, the uses of each invite, and who was evicted.

Time and uses bind only who is new: a member that was let in stays until it is revoked, or a site that restarts after
its invite has expired would be locked out. Who is new to us may be an old member: then our chain names it, once we have
that chain. Votes of members are counted in eviction.py. Source:
protocol/03-identity.md, M3, M4 and M7.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import AuthorityBook
from dilocoxd.machines.admission.certificates import Authorities, check_membership, check_revocation
from dilocoxd.machines.admission.eviction import Contributors, VoteCount, tally
from dilocoxd.machines.admission.vote_book import UNDECIDED_MAX, Verify, VoteBook, VoteRules, is_enough, newest
from dilocoxd.wire.admission import (
    OBSERVE,
    InviteTerms,
    MembershipProof,
    MemberVote,
    Revocation,
    RevocationTerms,
    eviction_text,
)
from dilocoxd.wire.codec import encode_struct

CLOCK_SLACK_MS: Final = 60_000
VOID_SLACK_ENTRIES: Final = 8
"""A site that was evicted in time may still stand in so many entries after its authorities became void."""
MEMBERS_MAX: Final = 4096
REVOKED_MAX: Final = 4096
SERIALS_OF_ONE_MAX: Final = 4
"""Memberships of one peer that are voted on, beside the one that it has shown us."""
Membership = tuple[PeerId, int]
"""Of which peer, by the invite with which serial."""


@dataclass(frozen=True, slots=True)
class Review:
    """What the votes say since the chain or they changed."""

    evicted: tuple[PeerId, ...] = ()
    reinstated: tuple[PeerId, ...] = ()
    has_new_authorities: bool = False


@dataclass(slots=True)
class AdmissionBook:
    """One record per member, keyed by peer; revocations by (peer, serial). Neither ever exceeds its maximum."""

    manifest: Authorities
    """The first authorities of the run."""
    members: dict[PeerId, MembershipProof] = field(default_factory=dict)
    revocations: dict[tuple[PeerId, int], Revocation] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    """Serials of invites that admit nobody any more, because a member that they admitted was evicted."""
    verify: Verify = lambda peer, signature, text: False
    """Of members' votes; a site that cannot check them believes none."""
    is_in_time: Callable[[PeerId], bool] = lambda voter: True
    """Whether another vote of this peer is taken up now: it will be told to all."""
    chain: Contributors | None = None
    """None: it is not loaded yet, and what was decided before stands."""
    is_catching_up: bool = False
    """Our chain is not yet that of the others, so it cannot tell us who is a member already."""
    authorities: AuthorityBook = field(init=False)
    undecided: VoteBook[Membership] = field(init=False)
    on_credit: set[PeerId] = field(default_factory=set)
    """Whom we let in before we could know whether they are members of old."""
    _signed_by: dict[Membership, bytes] = field(default_factory=dict)
    """Which list signed a revocation. Keys: revocations."""
    _set_aside: dict[Membership, MembershipProof] = field(default_factory=dict)
    """Of peers that were evicted: a fork, or other authorities, can undo it, and then they are let in as before. Keys:
    revocations."""

    def __post_init__(self) -> None:
        self.authorities = AuthorityBook(self.manifest, self.verify, self.is_in_time, self._may_vote)
        self.undecided = VoteBook(
            VoteRules(self._text, self.verify, self.is_in_time, self._may_vote, self._can_be_voted_on, _tally)
        )

    def _text(self, key: Membership, height: int, head: bytes) -> bytes:
        return eviction_text(RevocationTerms(self.manifest.run, *key), height, head)

    def is_member(self, peer: PeerId) -> bool:
        """Whether `peer` was let in and not evicted since."""
        return peer in self.members

    def is_evicted(self, peer: PeerId) -> bool:
        """Whether a membership of `peer` was revoked, and it has no other."""
        return peer not in self.members and any(one == peer for one, _ in self.revocations)

    def may_contribute(self, peer: PeerId) -> bool:
        """Whether what `peer` offers is heard: the membership that it showed us does not say that it only follows."""
        proof = self.members.get(peer)
        return proof is None or proof.certificate.terms.role != OBSERVE

    def num_uses(self, serial: int) -> int:
        """How many members came by this invite."""
        return Counter(one.certificate.terms.serial for one in self.members.values())[serial]

    def check(self, membership: MembershipProof, peer: PeerId, now_ms: int) -> None:
        """Whether `peer` may come in with it.

        Raises WireError: wrong_run, unknown_authorities, bad_certificate, bad_membership, evicted, invite_void,
        invite_expired, invite_used_up.
        """
        known = self.members.get(peer)
        if known == membership:
            return
        terms = membership.certificate.terms
        self._check_genuine(membership, peer)
        if revocation := self.revocations.get((peer, terms.serial)):
            told = "this site was evicted from the run; ask an authority for a new invite"
            raise WireError("evicted", told, encode_struct(revocation))
        if known is not None:
            return
        if not self._may_be_old(peer):
            if self._is_void(terms):
                raise WireError("invite_void", "the authorities who made this invite were replaced; ask for a new one")
            self._check_is_fresh(terms, now_ms)
        elif not self._is_named(peer):
            self._check_uses(terms, self.num_uses(terms.serial) - self._num_on_credit(terms.serial))
        if len(self.members) >= MEMBERS_MAX:
            raise WireError("busy", f"the run has {MEMBERS_MAX} members already")

    def check_visitor(self, membership: MembershipProof, peer: PeerId, now_ms: int) -> None:
        """The same for whoever has not begun to join. Raises WireError as `check` does, and not_ready: before we have
        caught up an old member may come by a closed invite, and a newcomer would be let in by it."""
        self.check(membership, peer, now_ms)
        is_closed = membership.certificate.terms.serial in self.closed
        if is_closed and self.is_catching_up and not (self.is_member(peer) or self._is_named(peer)):
            raise WireError("not_ready", "the invite is closed for new sites, and this site catches up with the run")

    def _check_genuine(self, membership: MembershipProof, peer: PeerId) -> None:
        by = self.authorities.list_of(membership.certificate.terms.authorities)
        check_membership(membership, peer, by or self.manifest)

    def _is_void(self, terms: InviteTerms) -> bool:
        void_from = self.authorities.void_from(terms.authorities)
        return void_from is not None and (self.chain is None or self.chain.height >= void_from)

    def _is_over(self, terms: InviteTerms) -> bool:
        return self._is_void(terms) or terms.serial in self.closed

    def _may_be_old(self, peer: PeerId) -> bool:
        return self.is_catching_up or self._is_named(peer)

    def _is_named(self, peer: PeerId) -> bool:
        """Whether entries prove a membership. They may be older than its end: who was evicted asks for a new invite."""
        is_named = self.chain is not None and self.chain.last_entry(peer) is not None
        return is_named and all(peer != one for one, _ in self.revocations)

    def _check_is_fresh(self, terms: InviteTerms, now_ms: int) -> None:
        if terms.serial in self.closed:
            raise WireError(
                "invite_used_up", "the invite was closed when a site that came by it was evicted; ask for a new one"
            )
        if now_ms > terms.not_after_ms + CLOCK_SLACK_MS:
            raise WireError("invite_expired", "the invite has expired; ask for a new one")
        self._check_uses(terms, self.num_uses(terms.serial))

    def _check_uses(self, terms: InviteTerms, used: int) -> None:
        if used >= terms.uses:
            sites = "site" if terms.uses == 1 else "sites"
            raise WireError("invite_used_up", f"the invite was for {terms.uses} {sites} and has let in {used}")

    def _num_on_credit(self, serial: int) -> int:
        credited = (self.members[peer] for peer in self.on_credit if peer in self.members)
        return sum(one.certificate.terms.serial == serial for one in credited)

    def take_in(self, membership: MembershipProof, peer: PeerId, now_ms: int) -> bool:
        """Make `peer` a member; whether that is news. Raises WireError as `check` does."""
        self.check(membership, peer, now_ms)
        is_new = self.members.get(peer) != membership
        if peer not in self.members and self.is_catching_up:
            self.on_credit.add(peer)
        self.members[peer] = membership
        return is_new

    def settle_credit(self) -> tuple[PeerId, ...]:
        """We have caught up: who came by a void or closed invite, and is in no entry, is no member after all."""
        self.is_catching_up = False
        out = [peer for peer in self.on_credit if peer in self.members and not self._may_be_old(peer)]
        out = [peer for peer in out if self._is_over(self.members[peer].certificate.terms)]
        self.on_credit.clear()
        for peer in out:
            del self.members[peer]
        return tuple(out)

    def revoke(self, revocation: Revocation) -> bool:
        """Evict whom it names; whether that is news. Raises WireError(wrong_run | bad_certificate | busy)."""
        listed = check_revocation(revocation, self.authorities.lists())
        if not self._may_evict(revocation.terms.peer, listed):
            return False
        is_news = self.settle(revocation)
        if is_news:
            self._signed_by[revocation.terms.peer, revocation.terms.serial] = listed
        return is_news

    def _may_evict(self, peer: PeerId, listed: bytes) -> bool:
        """Not, if the list is void and the peer went on contributing: a stolen key would evict everybody."""
        void_from = self.authorities.void_from(listed)
        if void_from is None or self.chain is None or self.chain.height < void_from:
            return True
        last = self.chain.last_entry(peer)
        return last is None or last < void_from + VOID_SLACK_ENTRIES

    def settle(self, revocation: Revocation) -> bool:
        """The same for one whose signatures were checked before, by us or by the chain."""
        terms: RevocationTerms = revocation.terms
        key = (terms.peer, terms.serial)
        known = self.revocations.get(key)
        if known is not None and (known.signatures or not revocation.signatures):
            return False
        if known is None and len(self.revocations) >= REVOKED_MAX:
            raise WireError("busy", f"{REVOKED_MAX} revocations are known already")
        self.revocations[key] = revocation
        self.closed.add(terms.serial)
        self.undecided.drop(key)
        proof = self.members.get(terms.peer)
        if proof is not None and proof.certificate.terms.serial == terms.serial:
            del self.members[terms.peer]
            self._set_aside[key] = proof
        return True

    def vote(self, revocation: Revocation) -> tuple[MemberVote, ...]:
        """Keep the votes of members that are news, and return them; `review` says what follows from them.

        Raises WireError(wrong_run | bad_signature).
        """
        key = (revocation.terms.peer, revocation.terms.serial)
        self._check_run(revocation)
        return () if key in self.revocations else self.undecided.cast(key, revocation.votes, self.chain)

    def check_votes(self, revocation: Revocation) -> None:
        """Whether all its votes are genuine. Raises WireError(wrong_run | bad_signature)."""
        self._check_run(revocation)
        self.undecided.check_all((revocation.terms.peer, revocation.terms.serial), revocation.votes)

    def _check_run(self, revocation: Revocation) -> None:
        if revocation.terms.run != self.manifest.run:
            raise WireError("wrong_run", "the votes belong to another run")

    def _revocation(self, key: Membership, votes: tuple[MemberVote, ...]) -> Revocation:
        return Revocation(RevocationTerms(self.manifest.run, *key), (), votes)

    def waiting(self) -> tuple[Revocation, ...]:
        """Votes on entries that we do not have yet, oldest first."""
        return tuple(self._revocation(key, votes) for key, votes in self.undecided.waiting)

    def votes(self) -> tuple[Revocation, ...]:
        """Of evictions that are undecided."""
        return tuple(self._revocation(key, self.undecided.on(key)) for key in self.undecided.votes)

    def recall(self, revocation: Revocation) -> None:
        """Settle one that was in force before a restart, for the chain is not there yet. Raises WireError."""
        if revocation.votes:
            self.check_votes(revocation)
            self.settle(revocation)
        else:
            self.revoke(revocation)

    def recall_member(self, proof: MembershipProof) -> None:
        """Take in one that was let in before a restart, also if its invite has expired since. Raises WireError."""
        self._check_genuine(proof, proof.peer)
        key = (proof.peer, proof.certificate.terms.serial)
        revoked = self.revocations.get(key)
        if revoked is None:
            self.members[proof.peer] = proof
        else:
            self._set_aside[key] = proof

    def recall_votes(self, revocation: Revocation) -> None:
        """Keep votes on an eviction that was undecided before a restart. Raises WireError."""
        key = (revocation.terms.peer, revocation.terms.serial)
        if key in self.revocations or len(self.undecided.votes) >= UNDECIDED_MAX:
            return
        self.check_votes(revocation)
        self.undecided.hold(key, revocation.votes)

    def set_aside(self) -> tuple[MembershipProof, ...]:
        """Memberships that have ended, for as long as that may be undone."""
        return tuple(self._set_aside.values())

    def _can_be_voted_on(self, key: Membership) -> bool:
        peer, serial = key
        proof = self.members.get(peer)
        if proof is not None and proof.certificate.terms.serial == serial:
            return True
        is_known = self.chain is None or self.chain.last_entry(peer) is not None
        return is_known and sum(peer == one for one, _ in self.undecided.votes) < SERIALS_OF_ONE_MAX

    def _may_vote(self, peer: PeerId) -> bool:
        return peer in self.members or (self.chain is not None and self.chain.last_entry(peer) is not None)

    def tally(self, key: Membership) -> VoteCount | None:
        """How far the members are with this eviction; None: nobody voted, or no vote counts on our chain.

        Votes on other memberships of the same peer count too, where none of them decides alone: who shows each half of
        the others another invite would else be evicted by nobody."""
        if self.chain is None:
            return None
        votes = self._votes_on(key)
        own = _tally(key, votes, self.chain)
        joint = self._joint_tally(key[0], self.chain) if votes and not is_enough(own) else None
        return joint if is_enough(joint) else own

    def _votes_on(self, key: Membership) -> tuple[MemberVote, ...]:
        known = self.revocations.get(key)
        return known.votes if known is not None else self.undecided.on(key)

    def _joint_tally(self, peer: PeerId, chain: Contributors) -> VoteCount | None:
        voted_on = {key for key in (*self.undecided.votes, *self.revocations) if key[0] == peer}
        parts = [(key, votes) for key in voted_on if (votes := self._votes_on(key))]
        weak = [votes for key, votes in parts if not is_enough(_tally(key, votes, chain))]
        return tally(peer, [vote for votes in weak for vote in votes], chain) if len(weak) > 1 else None

    @property
    def has_votes(self) -> bool:
        """Whether `review` can find anything."""
        is_open = bool(self.undecided.votes or self.undecided.waiting)
        return is_open or self.authorities.has_any or any(one.votes for one in self.revocations.values())

    def review(self) -> Review:
        """Count again: our chain or the votes have changed. Evicts, and lets in again where the chain has changed."""
        if self.chain is None:
            return Review()
        height = self.chain.height
        has_new_authorities = self.authorities.review(self.chain)
        for key, votes in self.undecided.take_waiting(height):
            self.vote(self._revocation(key, votes))
        # What was voted on entries that we lack, after a rollback or a lost log, stands until they are there.
        judged = [key for key, one in self.revocations.items() if one.votes and newest(one.votes) <= height]
        reinstated = [key for key in judged if not self._is_decided(key)]
        reinstated += [key for key, listed in self._signed_by.items() if not self._may_evict(key[0], listed)]
        for key in reinstated:
            self._reinstate(key)
        evicted = [key for key in self.undecided.votes if self._is_decided(key)]
        evicted = evicted[: max(0, REVOKED_MAX - len(self.revocations))]
        for key in evicted:
            self.settle(self._revocation(key, self.undecided.on(key)))
        self.undecided.prune(height)
        out, back = (tuple(dict.fromkeys(peer for peer, _ in keys)) for keys in (evicted, reinstated))
        return Review(out, back, has_new_authorities)

    def _is_decided(self, key: Membership) -> bool:
        return is_enough(self.tally(key))

    def _reinstate(self, key: Membership) -> None:
        undone = self.revocations.pop(key)
        self._signed_by.pop(key, None)
        peer, serial = key
        if all(serial != other for _, other in self.revocations):
            self.closed.discard(serial)
        if proof := self._set_aside.pop(key, None):
            self.members.setdefault(peer, proof)
        if undone.votes:
            self.undecided.hold(key, undone.votes)


def _tally(key: Membership, votes: Sequence[MemberVote], chain: Contributors) -> VoteCount | None:
    return tally(key[0], votes, chain)
