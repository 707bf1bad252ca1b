"""Other authorities than the manifest's: numbered changes, signed by the authorities before or voted by members.

Pure data and the exact bytes that are signed; what is in force is decided in machines/admission/authority_book.py.
Source: protocol/03-identity.md, M8 and M9.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest
from dilocoxd.wire.admission import (
    AUTHORITIES_MAX,
    VOTES_MAX,
    AuthoritySignature,
    MemberVote,
    PublicKey,
    check_signature_order,
    check_vote_order,
)
from dilocoxd.wire.codec import Bounds, Length, Sha256, Uint, decode_struct, encode_struct

CHANGES_MAX: Final = 64
"""A run changes its authorities so often at most; who joins checks them all."""
CHANGE_BYTES_MAX: Final = 1 << 16
PACKED_MAX: Final = 512
PACKED_BYTES_MAX: Final = 8 << 20
"""Of the resource `authorities`."""

_SIGN_DOMAIN: Final = b"dilocoxd/2/authorities\0"
_VOTE_DOMAIN: Final = b"dilocoxd/2/replace\0"


@dataclass(frozen=True, slots=True)
class AuthorityTerms:
    """Who decides from now on who may join."""

    run: Sha256
    """sha256 of the manifest."""
    number: Annotated[int, Bounds(1, CHANGES_MAX)]
    """That of the list before, plus one; the manifest's has number 0."""
    before: Sha256
    """`change_hash` of the change that made the list before; for the manifest's list, `run`."""
    keys: Annotated[tuple[PublicKey, ...], Length(1, AUTHORITIES_MAX)]
    threshold: Annotated[int, Bounds(1, AUTHORITIES_MAX)]
    void_from: Uint
    """0: invites of earlier lists stay good. Else they admit nobody new on a chain that has so many entries."""


@dataclass(frozen=True, slots=True)
class AuthorityChange:
    """Signed by as many authorities of the list before as decide; or what members voted, enough or not yet."""

    terms: AuthorityTerms
    signatures: Annotated[tuple[AuthoritySignature, ...], Length(0, AUTHORITIES_MAX)]
    votes: Annotated[tuple[MemberVote, ...], Length(0, VOTES_MAX)]


def authorities_text(terms: AuthorityTerms) -> bytes:
    """Exact bytes that the authorities before sign."""
    return _SIGN_DOMAIN + encode_struct(terms)


def replacement_text(terms: AuthorityTerms, height: int, head: bytes) -> bytes:
    """Exact bytes that a member signs to vote for these authorities, on a chain of `height` entries."""
    return _VOTE_DOMAIN + encode_struct(terms) + height.to_bytes(8, "big") + head


def change_hash(terms: AuthorityTerms) -> Digest:
    """What the next change, and invites of these authorities, name."""
    return Digest(hashlib.sha256(authorities_text(terms)).digest())


def check_terms_form(terms: AuthorityTerms) -> None:
    """Raises WireError(malformed): a key twice, or a threshold that cannot be met."""
    if len(set(terms.keys)) != len(terms.keys):
        raise WireError("malformed", "AuthorityTerms.keys has a key twice")
    if terms.threshold > len(terms.keys):
        raise WireError("malformed", "AuthorityTerms.threshold is above the number of keys")


def pack_changes(changes: Iterable[AuthorityChange]) -> bytes:
    """The resource `authorities`: encoded changes, each with its length in front (4 bytes, little endian)."""
    parts = [encode_struct(one) for one in changes]
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def unpack_changes(data: bytes) -> list[AuthorityChange]:
    """The changes in a resource `authorities`. Raises WireError(malformed | truncated | too_large)."""
    found: list[AuthorityChange] = []
    position = 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "little")
        if end > len(data) or end - position > CHANGE_BYTES_MAX + 4:
            raise WireError("truncated", "a change of the authorities does not fit into what was sent")
        if len(found) >= PACKED_MAX:
            raise WireError("too_large", f"more than {PACKED_MAX} changes of the authorities")
        found.append(decode_change(data[position + 4 : end]))
        position = end
    return found


def decode_terms(data: bytes) -> AuthorityTerms:
    """The terms in `data`, their form checked. Raises WireError(malformed | too_large)."""
    found = decode_struct(AuthorityTerms, data, size_max=CHANGE_BYTES_MAX)
    check_terms_form(found)
    return found


def decode_change(data: bytes) -> AuthorityChange:
    """The change in `data`, its form checked, no signature. Raises WireError(malformed | too_large)."""
    found = decode_struct(AuthorityChange, data, size_max=CHANGE_BYTES_MAX)
    check_terms_form(found.terms)
    check_signature_order(found.signatures)
    check_vote_order(found.votes)
    if found.votes and found.signatures:
        raise WireError("malformed", "a change has authorities' signatures or members' votes, not both")
    return found
