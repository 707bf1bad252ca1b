"""The members of the run for people, and the eviction of one: by a signed revocation, or by this site's vote."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from dilocoxd.answers.members import InviteState, Member
from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.daemon.peers.voting import SETTLED_ENTRIES, refused_in_words, signed_vote
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.admission.eviction import (
    PRESENCE,
    VOTE_ENTRIES,
    WINDOW_ENTRIES,
    VoteCount,
    electors_at,
    height_to_vote_at,
)
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.vote_book import VOTES_OF_ONE_MAX
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.service import Swarm
from dilocoxd.swarm.streams.streams import unix_ms
from dilocoxd.wire.admission import (
    InviteTerms,
    MembershipProof,
    MemberVote,
    Revocation,
    RevocationTerms,
    decode_membership,
    decode_revocation,
    eviction_text,
)


@dataclass(frozen=True, slots=True)
class Members:
    """Reads the network's book."""

    swarm: Swarm
    identity: Identity
    chain: ContributorRoll
    own: bytes
    """Our encoded membership; empty where the run asks for none."""
    name_of: Callable[[PeerId], str]
    left_out: Callable[[], Mapping[PeerId, RoundIndex]] = dict
    """Who voted twice, with the last round that leaves it out, as the chain says."""

    def expect_others(self) -> None:
        """We are about to meet the run: until `has_caught_up` we cannot know who is an old member of it."""
        if self.swarm.admissions is not None:
            self.swarm.admissions.book.is_catching_up = True

    def has_caught_up(self) -> None:
        """Our chain is that of the others: who is not in it, and is new to us, is new."""
        if self.swarm.admissions is not None:
            self.swarm.admissions.settle_credit()

    def follow_chain(self) -> None:
        """Our chain is loaded: count the members' votes by it from now on."""
        if self.swarm.admissions is not None:
            self.swarm.admissions.follow(self.chain)
            self.chain.on_change = self.swarm.admissions.review

    def shown(self) -> list[Member]:
        """GET /v1/members: this site first, then the others, then who was evicted."""
        admissions = self.swarm.admissions
        if admissions is None:
            return []
        book = admissions.book
        own_key = self.swarm.doors.own_membership()
        own = decode_membership(self.own)
        others = [proof for peer, proof in sorted(book.members.items()) if peer != self.identity.peer_id]
        is_out = own_key in book.revocations  # then it is shown below
        proofs = (*(() if is_out else (own,)), *others)
        uses = Counter(proof.certificate.terms.serial for proof in proofs)
        members = [self._member(proof, uses[proof.certificate.terms.serial]) for proof in proofs]
        return members + [
            Member(
                peer_id=peer,
                name=self.name_of(peer),
                state="evicted",
                serial=f"{serial:x}",
                role="",
                uses=None,
                invite_expires_unix=None,
                **_counted(book.tally((peer, serial))),
                left_out_until=self.left_out().get(peer),
            )
            for peer, serial in sorted(book.revocations, key=lambda key: (key != own_key, key))
        ]

    def _member(self, proof: MembershipProof, num_uses: int) -> Member:
        terms = proof.certificate.terms
        admissions = self.swarm.admissions
        assert admissions is not None, "who shows members has a book of them"
        return Member(
            peer_id=proof.peer,
            name=self.name_of(proof.peer),
            state="member",
            serial=f"{terms.serial:x}",
            role=terms.role,
            uses=terms.uses,
            invite_expires_unix=terms.not_after_ms // 1000,
            invite_state=self._invite_state(admissions.book, terms, num_uses),
            **_counted(admissions.book.tally((proof.peer, terms.serial))),
            left_out_until=self.left_out().get(proof.peer),
        )

    def _invite_state(self, book: AdmissionBook, terms: InviteTerms, num_uses: int) -> InviteState:
        """What whoever comes by it now is told, as far as this site knows; `num_uses`: members that came by it."""
        void_from = book.authorities.void_from(terms.authorities)
        if terms.serial in book.closed:
            return "closed"
        if void_from is not None and self.chain.height >= void_from:
            return "void"
        if unix_ms() > terms.not_after_ms:
            return "expired"
        return "used up" if num_uses >= terms.uses else "open"

    def vote_eviction(self, site: str) -> str:
        """Sign and tell our vote that the member with this peer id shall be out. Raises CommandRefused."""
        admissions, peer, me = self.swarm.admissions, PeerId(site), self.identity.peer_id
        proof = admissions.book.members.get(peer) if admissions is not None else None
        if admissions is None or proof is None or peer == me:
            raise CommandRefused(f"{self.name_of(peer)} is no other member of the run; see `dilocoxd members`")
        height = height_to_vote_at(self.chain, me, peer, SETTLED_ENTRIES)
        if height is None:
            raise CommandRefused(self._why_no_vote(peer))
        return self._vote(admissions.book, proof, height)

    def vote_against(self, peer: PeerId, before: RoundIndex) -> str:
        """Our vote against the member that made a false result in the entry of round `before` (X14). It stands where
        that entry is not yet: once that is taken back, a vote that names what follows it counts nothing. Raises
        CommandRefused."""
        admissions, me = self.swarm.admissions, self.identity.peer_id
        if admissions is None:
            raise CommandRefused("this run asks for no invites, so nobody can be evicted from it")
        if (proof := admissions.book.members.get(peer)) is None:
            raise CommandRefused(f"{self.name_of(peer)} is no member of the run any more")
        tip = self.chain.height  # below that entry, where others below it are taken back as well
        for height in (min(before, tip - SETTLED_ENTRIES), min(before, tip)):
            if height > 0 and me in electors_at(self.chain, height, peer):
                return self._vote(admissions.book, proof, height)
        raise CommandRefused("before that entry this site, or that one, had no part in the run that would let it vote")

    def _vote(self, book: AdmissionBook, proof: MembershipProof, height: int) -> str:
        peer, me = proof.peer, self.identity.peer_id
        terms = RevocationTerms(book.manifest.run, peer, proof.certificate.terms.serial)
        before = book.undecided.votes.get((peer, terms.serial), {}).get(me)
        if before is not None and self._is_good(before, height):
            return self._voted(terms, "had voted already")
        vote = signed_vote(self.identity, self.chain, height, functools.partial(eviction_text, terms))
        with refused_in_words("the vote"):
            is_news = self.swarm.decisions.evict(Revocation(terms, (), (vote,)))
        if not is_news:
            raise CommandRefused(
                f"the vote is not taken up: this site has votes on {VOTES_OF_ONE_MAX} undecided evictions, or voted"
                " too often lately; repeat it in a few minutes, or ask an authority"
            )
        return self._voted(terms, "has voted")

    def _is_good(self, vote: MemberVote, height: int) -> bool:
        return self.chain.hash_at(vote.height) == vote.head and vote.height > height - VOTE_ENTRIES

    def _voted(self, terms: RevocationTerms, verb: str) -> str:
        assert self.swarm.admissions is not None, "there was something to vote on"
        who, found = self.name_of(terms.peer), self.swarm.admissions.book.tally((terms.peer, terms.serial))
        if found is not None and found.is_decided:
            return f"{who} is evicted by {found.num_votes} votes of {found.num_electors} members; the others are told"
        so_far = (
            f"{found.num_votes} of {found.num_needed} needed votes"
            if found is not None
            else f"no vote counts yet, because none is about the last {VOTE_ENTRIES} entries of the chain as it is now"
        )
        return f"this site {verb} to evict {who}: {so_far}; have other members run the same command"

    def _why_no_vote(self, peer: PeerId) -> str:
        who = self.name_of(peer)
        if not electors_at(self.chain, self.chain.height, peer):
            return f"{who} contributed to none of the last {WINDOW_ENTRIES} entries; only an authority can evict it"
        return (
            f"this site contributed to less than 1 of {PRESENCE} of the last {WINDOW_ENTRIES} entries, so its vote does"
            " not count; ask another member, or an authority"
        )

    def evict(self, revocation: str) -> str:
        """Settle a revocation in hex and tell the others. Raises CommandRefused."""
        with refused_in_words("the eviction"):
            signed = decode_revocation(bytes.fromhex(revocation))
            is_news = self.swarm.decisions.evict(signed)
        who = self.name_of(signed.terms.peer)
        return f"{who} is evicted; the others are told" if is_news else f"{who} was evicted already"


class _Counted(TypedDict):
    eviction_votes: int | None
    eviction_votes_needed: int | None


def _counted(found: VoteCount | None) -> _Counted:
    votes = (found.num_votes, found.num_needed) if found is not None and found.num_votes else (None, None)
    return {"eviction_votes": votes[0], "eviction_votes_needed": votes[1]}
