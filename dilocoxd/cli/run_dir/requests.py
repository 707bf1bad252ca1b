"""What several authorities sign together travels in a file: terms, and the signatures collected so far. No secret."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from dilocoxd.answers.words import plural
from dilocoxd.cli.run_dir.admission import Keyring
from dilocoxd.errors import ConfigError, WireError, reason_of
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.wire.admission import (
    OBSERVE,
    AuthoritySignature,
    InviteTerms,
    RevocationTerms,
    invite_text,
    revoke_text,
)
from dilocoxd.wire.authorities import AuthorityTerms, authorities_text, check_terms_form
from dilocoxd.wire.codec import decode_struct, encode_struct

Terms = InviteTerms | RevocationTerms | AuthorityTerms
TERMS_BYTES_MAX = 1024
LAST_UNIX_S: Final = 253_402_300_799
"""Of the year 9999: no calendar shows more."""


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """An invite, an eviction or a change of the authorities that still lacks signatures."""

    kind: Literal["invite", "evict", "authorities"]
    terms: Terms
    authorities: tuple[str, ...]
    """Public keys in hex, as the list in force has them."""
    signatures: tuple[AuthoritySignature, ...]

    @property
    def text(self) -> bytes:
        """What is signed."""
        if isinstance(self.terms, AuthorityTerms):
            return authorities_text(self.terms)
        return invite_text(self.terms) if isinstance(self.terms, InviteTerms) else revoke_text(self.terms)

    def in_words(self) -> str:
        """What is signed: whoever sends the file says nothing of that but in the file."""
        terms, run = self.terms, f"run {self.terms.run.hex()[:16]}"
        if isinstance(terms, RevocationTerms):
            return f"the end of the membership of {terms.peer} in {run}"
        if isinstance(terms, InviteTerms):
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(terms.not_after_ms // 1000, LAST_UNIX_S)))
            may = "follow" if terms.role == OBSERVE else "take part in"
            return f"an invite that lets {plural(terms.uses, 'site')} {may} {run}, until {until}"
        void = " Links made before admit nobody new." if terms.void_from else ""
        keys = ", ".join(key.hex()[:16] for key in terms.keys)
        return f"list {terms.number} of the authorities of {run}: {terms.threshold} of {keys} decide.{void}"

    def signed_by(self, keys: list[SigningKey]) -> "SigningRequest":
        """With the signatures of these keys. Raises ConfigError if none of them is an authority of the run."""
        places = {self.authorities.index(key.public.hex()): key for key in keys if key.public.hex() in self.authorities}
        if not places:
            raise ConfigError("none of these keys is an authority of the run that asks; give the file of another key")
        found = {one.authority: one for one in self.signatures}
        found |= {place: AuthoritySignature(place, key.sign(self.text)) for place, key in places.items()}
        return replace(self, signatures=tuple(found[place] for place in sorted(found)))

    def joined(self, path: Path) -> "SigningRequest":
        """With the signatures in the file at `path`, where `save` would replace it: those of others, for the same.

        Raises ConfigError if it asks for something else."""
        if not path.exists():
            return self
        there = load_request(path)
        if (there.terms, there.authorities) != (self.terms, self.authorities):
            raise ConfigError(
                f"{path} is here already, signed by {len(there.signatures)}, and asks for"
                f" {there.in_words().removesuffix('.')}; take that with --signed, or move the file away and give the"
                " command again"
            )
        found = {one.authority: one for one in (*there.signatures, *self.signatures)}
        return replace(self, signatures=tuple(found[place] for place in sorted(found)))

    def save(self, path: Path) -> None:
        """Write the file."""
        table = {
            "kind": self.kind,
            "terms": encode_struct(self.terms).hex(),
            "authorities": list(self.authorities),
            "signatures": {str(one.authority): one.signature.hex() for one in self.signatures},
        }
        path.write_text(json.dumps(table, indent=1) + "\n", encoding="ascii")


def new_request(kind: Literal["invite", "evict", "authorities"], terms: Terms, ring: Keyring) -> SigningRequest:
    """One that the keys of this run directory have signed."""
    keys = tuple(key.hex() for key in ring.authorities.keys)
    request = SigningRequest(kind, terms, keys, ())
    return request.signed_by(list(ring.keys.values())) if ring.keys else request


def load_request(path: Path) -> SigningRequest:
    """The request in a file. Raises ConfigError."""
    try:
        table = json.loads(path.read_text("ascii"))
        form: type[InviteTerms] | type[RevocationTerms] | type[AuthorityTerms]
        form = {"invite": InviteTerms, "evict": RevocationTerms, "authorities": AuthorityTerms}[table["kind"]]
        terms: Terms = decode_struct(form, bytes.fromhex(table["terms"]), size_max=TERMS_BYTES_MAX)
        if isinstance(terms, AuthorityTerms):
            check_terms_form(terms)
        signatures = tuple(
            AuthoritySignature(int(place), bytes.fromhex(text))
            for place, text in sorted(table["signatures"].items(), key=lambda item: int(item[0]))
        )
        return SigningRequest(table["kind"], terms, tuple(map(str, table["authorities"])), signatures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise ConfigError(
            f"{path}: is no file of `dilocoxd invite`, `evict` or `authority rotate` ({reason_of(error)}); give one"
        ) from error
