"""Who belongs to a run: invites certified by authorities, memberships signed with an invite's key, revocations.

Pure data and the exact bytes that each signature covers; what is believed is decided in machines/admission
(protocol/03-identity.md, M1 to M4, M7). Keys and signatures are Ed25519 (RFC 8032): 32 and 64 bytes; members vote with
the keys of their identities.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.wire.codec import Bounds, Length, Name, Sha256, Uint, decode_struct, encode_struct
from dilocoxd.wire.entry import Signature as IdentitySignature

OBSERVE: Final = "observe"
"""Role of who follows the run and contributes nothing (M2)."""
ROLES: Final = ("contribute", OBSERVE)
AUTHORITIES_MAX: Final = 16
USES_MAX: Final = 1024
MEMBERSHIP_BYTES_MAX: Final = 1536
"""With one authority's signature it has less than 512."""
REVOCATION_BYTES_MAX: Final = 1 << 16
VOTES_MAX: Final = 96
"""So many, each of about 650 bytes, fit into a revocation."""

_INVITE_DOMAIN: Final = b"dilocoxd/2/invite\0"
_MEMBER_DOMAIN: Final = b"dilocoxd/2/member\0"
_REVOKE_DOMAIN: Final = b"dilocoxd/2/revoke\0"
_EVICT_DOMAIN: Final = b"dilocoxd/2/evict\0"

PublicKey = Annotated[bytes, Length(32, 32)]
Signature = Annotated[bytes, Length(64, 64)]


@dataclass(frozen=True, slots=True)
class AuthoritySignature:
    """Signature of one authority."""

    authority: Annotated[int, Bounds(0, AUTHORITIES_MAX - 1)]
    """Its place in the list: `admission.authorities` of the manifest, or that of a change (wire/authorities.py)."""
    signature: Signature


@dataclass(frozen=True, slots=True)
class InviteTerms:
    """What authorities certify: who holds the private half of `invite_key` may admit sites."""

    run: Sha256
    """sha256 of the manifest."""
    serial: Uint
    """Drawn at random; the chain counts uses by it."""
    invite_key: PublicKey
    not_after_ms: Uint
    """Unix time after which it admits nobody; who was admitted before stays."""
    uses: Annotated[int, Bounds(1, USES_MAX)]
    role: Name
    """One of ROLES."""
    authorities: Sha256
    """Whose list signed: the hash of the change that made it, or `run` for the manifest's."""


@dataclass(frozen=True, slots=True)
class InviteCertificate:
    """An invite with the signatures of its authorities, sorted by authority."""

    terms: InviteTerms
    signatures: Annotated[tuple[AuthoritySignature, ...], Length(1, AUTHORITIES_MAX)]


@dataclass(frozen=True, slots=True)
class MembershipProof:
    """A site that an invite admitted: authority -> invite key -> peer, a proof that anybody checks alone."""

    certificate: InviteCertificate
    peer: Annotated[PeerId, Length(1, 128)]
    signature: Signature
    """By the invite's key, over `member_text`."""


@dataclass(frozen=True, slots=True)
class RevocationTerms:
    """Ends the membership of `peer` under invite `serial`, and that invite with it."""

    run: Sha256
    peer: Annotated[PeerId, Length(1, 128)]
    serial: Uint


@dataclass(frozen=True, slots=True)
class MemberVote:
    """A member's word for the terms beside it, signed with the key of its identity."""

    peer: Annotated[PeerId, Length(1, 128)]
    """The voter."""
    height: Annotated[int, Bounds(1, 2**63 - 1)]
    """Number of entries of the chain that it voted on."""
    head: Sha256
    """Hash of the last of these entries: on any other chain the vote counts nothing."""
    signature: IdentitySignature
    """Over `eviction_text` or `replacement_text`."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """Signed by as many authorities as the run asks for; or what members voted, which may be enough or not yet."""

    terms: RevocationTerms
    signatures: Annotated[tuple[AuthoritySignature, ...], Length(0, AUTHORITIES_MAX)]
    votes: Annotated[tuple[MemberVote, ...], Length(0, VOTES_MAX)]


def invite_text(terms: InviteTerms) -> bytes:
    """Exact bytes that an authority signs to certify an invite."""
    return _INVITE_DOMAIN + encode_struct(terms)


def member_text(terms: InviteTerms, peer: PeerId) -> bytes:
    """Exact bytes that an invite's key signs to admit `peer`."""
    return _MEMBER_DOMAIN + encode_struct(terms) + peer.encode()


def revoke_text(terms: RevocationTerms) -> bytes:
    """Exact bytes that authorities sign to end a membership."""
    return _REVOKE_DOMAIN + encode_struct(terms)


def eviction_text(terms: RevocationTerms, height: int, head: bytes) -> bytes:
    """Exact bytes that a member signs to vote for the end of a membership, on a chain of `height` entries."""
    return _EVICT_DOMAIN + encode_struct(terms) + height.to_bytes(8, "big") + head


def check_signature_order(signatures: tuple[AuthoritySignature, ...]) -> None:
    """Raises WireError(malformed) unless they are sorted, one of each authority."""
    places = [one.authority for one in signatures]
    if places != sorted(set(places)):
        raise WireError("malformed", "signatures are not sorted by authority, one each")


def check_vote_order(votes: tuple[MemberVote, ...]) -> None:
    """Raises WireError(malformed) unless they are sorted, one of each peer."""
    voters = [vote.peer for vote in votes]
    if voters != sorted(set(voters)):
        raise WireError("malformed", "votes are not sorted by peer, one each")


def check_certificate_form(certificate: InviteCertificate) -> None:
    """Raises WireError(malformed): unknown role, signatures that are not sorted."""
    if certificate.terms.role not in ROLES:
        raise WireError("malformed", "InviteTerms.role is unknown")
    check_signature_order(certificate.signatures)


def decode_membership(data: bytes) -> MembershipProof:
    """The membership in `data`, its form checked, no signature. Raises WireError(malformed | too_large)."""
    found = decode_struct(MembershipProof, data, size_max=MEMBERSHIP_BYTES_MAX)
    check_certificate_form(found.certificate)
    return found


def decode_revocation(data: bytes) -> Revocation:
    """The revocation in `data`, its form checked, no signature. Raises WireError(malformed | too_large)."""
    found = decode_struct(Revocation, data, size_max=REVOCATION_BYTES_MAX)
    check_signature_order(found.signatures)
    check_vote_order(found.votes)
    if any(vote.peer == found.terms.peer for vote in found.votes):
        raise WireError("malformed", "a peer votes for its own eviction")
    if found.votes and found.signatures:
        raise WireError("malformed", "a revocation has authorities' signatures or members' votes, not both")
    return found
