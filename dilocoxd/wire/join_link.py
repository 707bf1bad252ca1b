"""The link that `start` prints and a friend pastes behind `dilocoxd join`: address, run, checkpoint, invite.

    /ip4/203.0.113.7/tcp/31337/p2p/Qm.../run/<sha256 of the manifest>/at/<height>/<chain head>/key/<invite>

Letters, digits, dots and slashes only, so that no shell, chat or mail changes it; the invite is base58. A link without
`/key/` joins an open run. Source: protocol/05-discovery.md, M6.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

import base58

from dilocoxd.config.addresses import read_address
from dilocoxd.errors import WireError
from dilocoxd.ids import BASE58, Digest, is_peer_id
from dilocoxd.wire.admission import (
    AUTHORITIES_MAX,
    MEMBERSHIP_BYTES_MAX,
    USES_MAX,
    AuthoritySignature,
    InviteCertificate,
    InviteTerms,
    check_certificate_form,
)
from dilocoxd.wire.codec import Bounds, Length, Name, Uint, decode_struct, encode_struct

LINK_CHARS_MAX: Final = 4096
_LINK: Final = re.compile(
    r"(?P<address>[!-~]+?)/run/(?P<run>[0-9a-f]{64})/at/(?P<height>0|[1-9][0-9]{0,17})/(?P<head>[0-9a-f]{64})"
    rf"(?:/key/(?P<key>[{BASE58}]+))?"
)


@dataclass(frozen=True, slots=True)
class InviteToken:
    """An invite as it travels in a link: the private half of its key, and what else its certificate holds."""

    seed: Annotated[bytes, Length(32, 32)]
    serial: Uint
    not_after_ms: Uint
    uses: Annotated[int, Bounds(1, USES_MAX)]
    role: Name
    authorities: Annotated[bytes, Length(0, 32)]
    """As in the certificate; empty for the manifest's list, so that most links stay short."""
    signatures: Annotated[tuple[AuthoritySignature, ...], Length(1, AUTHORITIES_MAX)]

    def certificate(self, run: bytes, invite_key: bytes) -> InviteCertificate:
        """The certificate for the run of the link; `invite_key` is the public half of `seed`."""
        listed = self.authorities or run
        terms = InviteTerms(run, self.serial, invite_key, self.not_after_ms, self.uses, self.role, listed)
        return InviteCertificate(terms, self.signatures)

    def to_text(self) -> str:
        """Base58, as in a link and in the file `invite`."""
        return base58.b58encode(encode_struct(self)).decode("ascii")


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A parsed link."""

    address: str
    """As somebody may type it (config/addresses.py)."""
    run: Digest
    """sha256 of the manifest."""
    height: int
    head: Digest
    """Chain head at `height`, which the run's chain must contain."""
    invite: InviteToken | None

    def to_text(self) -> str:
        """The link."""
        key = f"/key/{self.invite.to_text()}" if self.invite is not None else ""
        return f"{self.address}/run/{self.run.hex()}/at/{self.height}/{self.head.hex()}{key}"


def token_from_text(text: str) -> InviteToken:
    """The invite in base58. Raises ValueError with one sentence."""
    try:
        token = decode_struct(InviteToken, base58.b58decode(text), size_max=MEMBERSHIP_BYTES_MAX)
        check_certificate_form(token.certificate(bytes(32), bytes(32)))
        if len(token.authorities) not in (0, 32):
            raise ValueError("neither the manifest's authorities nor the hash of others")
    except (WireError, ValueError):
        raise ValueError("the invite at the end of the link is damaged; copy the whole link again") from None
    return token


def is_link(text: str) -> bool:
    """Whether it is meant as a link, and not as a bare address."""
    return "/run/" in text


def read_link(text: str) -> JoinLink:
    """The parts of a link. Raises ValueError with one sentence."""
    found = _LINK.fullmatch(text) if len(text) <= LINK_CHARS_MAX else None
    peer = read_address(found["address"]).peer if found else ""
    if found is None or (peer and not is_peer_id(peer)):
        raise ValueError(
            f"the link {text[:60]!r} is damaged; copy all of what `dilocoxd start` or `dilocoxd invite` printed"
        )
    invite = token_from_text(found["key"]) if found["key"] else None
    return JoinLink(
        found["address"],
        Digest(bytes.fromhex(found["run"])),
        int(found["height"]),
        Digest(bytes.fromhex(found["head"])),
        invite,
    )
