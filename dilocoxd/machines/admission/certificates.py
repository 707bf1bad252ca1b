"""Which invites, memberships and revocations are genuine: authority -> invite key -> peer, checked without anybody.

Time, uses and who was evicted are another question (gate.py). Source: protocol/03-identity.md, M1 to M4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.keys import SigningKey, is_signed
from dilocoxd.wire.admission import (
    AuthoritySignature,
    InviteCertificate,
    InviteTerms,
    MembershipProof,
    Revocation,
    RevocationTerms,
    check_certificate_form,
    invite_text,
    member_text,
    revoke_text,
)
from dilocoxd.wire.authorities import AuthorityChange, AuthorityTerms, authorities_text


@dataclass(frozen=True, slots=True)
class Authorities:
    """Whose signatures a run believes: the list of its manifest, or of a change (authority_book.py)."""

    run: bytes
    """sha256 of the manifest, 32 bytes."""
    keys: tuple[bytes, ...]
    """Public keys; a signature names its key by the place in this list."""
    threshold: int = 1
    """So many of them must sign."""
    number: int = 0
    """How many changes made this list; 0: it is the manifest's."""
    change: bytes = b""
    """Hash of the change that made it; empty: it is the manifest's."""

    @property
    def listed(self) -> bytes:
        """What certificates of this list name."""
        return self.change or self.run

    def place_of(self, key: SigningKey) -> int | None:
        """Where `key` stands in the list; None: it is no authority of this run."""
        return self.keys.index(key.public) if key.public in self.keys else None

    def sign(self, text: bytes, keys: Mapping[int, SigningKey]) -> tuple[AuthoritySignature, ...]:
        """Signatures of the authorities at these places, sorted."""
        return tuple(AuthoritySignature(place, keys[place].sign(text)) for place in sorted(keys))

    def num_signed(self, text: bytes, signatures: tuple[AuthoritySignature, ...]) -> int:
        """How many authorities signed. Raises WireError(bad_certificate) if one of them did not."""
        for one in signatures:
            if one.authority >= len(self.keys):
                raise WireError("bad_certificate", f"this run has no authority number {one.authority}")
            if not is_signed(self.keys[one.authority], text, one.signature):
                raise WireError("bad_certificate", f"the signature of authority number {one.authority} is wrong")
        return len(signatures)

    def is_enough(self, num_signed: int) -> bool:
        """Whether so many authorities decide."""
        return 1 <= self.threshold <= num_signed


def authorities_of(run: bytes, keys: Iterable[str], threshold: int) -> Authorities:
    """Those of a manifest, whose keys are in hex."""
    return Authorities(run, tuple(bytes.fromhex(key) for key in keys), threshold)


def check_certificate(certificate: InviteCertificate, authorities: Authorities) -> None:
    """Raises WireError: wrong_run, malformed, bad_certificate (who signed, or too few)."""
    check_certificate_form(certificate)
    terms = certificate.terms
    if terms.run != authorities.run:
        raise WireError("wrong_run", "the invite belongs to another run")
    if terms.authorities != authorities.listed:
        raise WireError("unknown_authorities", "the invite is signed by authorities that are not known here (yet)")
    signed = authorities.num_signed(invite_text(terms), certificate.signatures)
    if not authorities.is_enough(signed):
        raise WireError(
            "bad_certificate",
            f"the invite is signed by {signed} of the authorities, the run asks for {authorities.threshold}",
        )


def check_membership(membership: MembershipProof, peer: PeerId, authorities: Authorities) -> None:
    """Whether it proves that `peer` was admitted. Raises WireError as check_certificate, and bad_membership."""
    if membership.peer != peer:
        raise WireError("bad_membership", "the membership is that of another peer")
    check_certificate(membership.certificate, authorities)
    terms = membership.certificate.terms
    if not is_signed(terms.invite_key, member_text(terms, peer), membership.signature):
        raise WireError("bad_membership", "the membership is not signed with the key of its invite")


def admit(certificate: InviteCertificate, invite: SigningKey, peer: PeerId) -> MembershipProof:
    """The membership of `peer`, made by whoever holds the invite."""
    return MembershipProof(certificate, peer, invite.sign(member_text(certificate.terms, peer)))


def certified(terms: InviteTerms, authorities: Authorities, keys: Mapping[int, SigningKey]) -> InviteCertificate:
    """`terms` signed by the authorities at these places (some may still be missing)."""
    return InviteCertificate(terms, authorities.sign(invite_text(terms), keys))


def revoked(terms: RevocationTerms, authorities: Authorities, keys: Mapping[int, SigningKey]) -> Revocation:
    """`terms` signed by the authorities at these places."""
    return Revocation(terms, authorities.sign(revoke_text(terms), keys), ())


def changed(terms: AuthorityTerms, before: Authorities, keys: Mapping[int, SigningKey]) -> AuthorityChange:
    """`terms` signed by the authorities before at these places (some may still be missing)."""
    return AuthorityChange(terms, before.sign(authorities_text(terms), keys), ())


def check_revocation(revocation: Revocation, lists: Iterable[Authorities]) -> bytes:
    """Which of these lists decided it, as certificates name it. Raises WireError(wrong_run | bad_certificate)."""
    text, failure = revoke_text(revocation.terms), WireError("bad_certificate", "the revocation is signed by nobody")
    for authorities in lists:
        if revocation.terms.run != authorities.run:
            raise WireError("wrong_run", "the revocation belongs to another run")
        try:
            signed = authorities.num_signed(text, revocation.signatures)
        except WireError as error:
            failure = error
            continue
        if authorities.is_enough(signed):
            return authorities.listed
        failure = WireError(
            "bad_certificate",
            f"the revocation is signed by {signed} of the authorities, the run asks for {authorities.threshold}",
        )
    raise failure
