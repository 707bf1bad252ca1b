"""The members of the run for people, and the eviction of one: hands a signed revocation to the network."""

from collections.abc import Callable
from dataclasses import dataclass

from dilocoxd.answers.members import Member
from dilocoxd.errors import CommandRefused, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.service import Swarm
from dilocoxd.wire.admission import MembershipProof, decode_membership, decode_revocation


@dataclass(frozen=True, slots=True)
class Members:
    """Reads the network's book."""

    swarm: Swarm
    me: PeerId
    own: bytes
    """Our encoded membership; empty where the run asks for none."""
    name_of: Callable[[PeerId], str]

    def shown(self) -> list[Member]:
        """GET /v1/members: this site first, then the others, then who was evicted."""
        admissions = self.swarm.admissions
        if admissions is None:
            return []
        book = admissions.book
        own = decode_membership(self.own)
        others = [proof for peer, proof in sorted(book.members.items()) if peer != self.me]
        members = [self._member(proof) for proof in (own, *others)]
        return members + [
            Member(
                peer_id=peer,
                name=self.name_of(peer),
                state="evicted",
                serial=f"{serial:x}",
                role="",
                uses=None,
                invite_expires_unix=None,
            )
            for peer, serial in sorted(book.revocations)
        ]

    def _member(self, proof: MembershipProof) -> Member:
        terms = proof.certificate.terms
        return Member(
            peer_id=proof.peer,
            name=self.name_of(proof.peer),
            state="member",
            serial=f"{terms.serial:x}",
            role=terms.role,
            uses=terms.uses,
            invite_expires_unix=terms.not_after_ms // 1000,
        )

    def evict(self, revocation: str) -> str:
        """Settle a revocation in hex and tell the others. Raises CommandRefused."""
        try:
            signed = decode_revocation(bytes.fromhex(revocation))
            is_news = self.swarm.evict(signed)
        except WireError as error:
            raise CommandRefused(f"the eviction is not accepted: {error.detail}") from error
        except ValueError as error:
            raise CommandRefused(f"the eviction is no hex text ({error})") from error
        who = self.name_of(signed.terms.peer)
        return f"{who} is evicted; the others are told" if is_news else f"{who} was evicted already"
