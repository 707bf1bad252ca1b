"""Keeps the run's members and evictions on disk, and tells the others who was evicted (protocol M4, M5).

A member that was let in once is let in after a restart too, though its invite has expired meanwhile. What the file
holds is checked like what a peer sends: its signatures are the proof.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities, check_membership
from dilocoxd.machines.admission.gate import MEMBERS_MAX, AdmissionBook
from dilocoxd.store.durable import write_json
from dilocoxd.wire.admission import MembershipProof, Revocation, decode_membership, decode_revocation
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.messages import Revocations

FILE_BYTES_MAX: Final = 64 << 20
REVOCATIONS_PER_MESSAGE: Final = 15


class Admissions:
    """The book with its file."""

    def __init__(self, book: AdmissionBook, path: Path) -> None:
        self.book = book
        self._path = path
        self._has_news = False
        self.on_evicted: Callable[[PeerId], None] = lambda peer: None
        """Told of each peer that is no member any more."""

    def note_change(self) -> None:
        """The book has a new member."""
        self._has_news = True

    def load(self) -> str:
        """Read the file; why it could not be used, or empty."""
        try:
            if not self._path.exists():
                return ""
            if self._path.stat().st_size > FILE_BYTES_MAX:
                return f"{self._path}: larger than {FILE_BYTES_MAX} bytes"
            found = json.loads(self._path.read_text("ascii"))
            for text in found["revocations"]:
                self.book.revoke(decode_revocation(bytes.fromhex(text)))
            for text in found["members"][:MEMBERS_MAX]:
                self._keep(decode_membership(bytes.fromhex(text)))
        except (OSError, ValueError, KeyError, TypeError, WireError) as error:
            return f"{self._path}: {type(error).__name__}: {error}"
        return ""

    def _keep(self, proof: MembershipProof) -> None:
        check_membership(proof, proof.peer, self.book.authorities)
        if (proof.peer, proof.certificate.terms.serial) not in self.book.revocations:
            self.book.members[proof.peer] = proof

    def save(self) -> None:
        """Write the file if there is news. Raises StoreError."""
        if not self._has_news:
            return
        self._has_news = False
        members = [encode_struct(proof).hex() for proof in self.book.members.values()]
        revocations = [encode_struct(one).hex() for one in self.book.revocations.values()]
        try:
            write_json(self._path, {"members": members, "revocations": revocations})
        except StoreError:
            self._has_news = True
            raise

    def take(self, message: Revocations) -> tuple[Revocation, ...]:
        """Those that are news, settled. Raises WireError for the first that is not genuine."""
        return tuple(one for one in map(decode_revocation, message.items) if self.evict(one))

    def evict(self, revocation: Revocation) -> bool:
        """Settle one; whether it is news. Raises WireError."""
        if not self.book.revoke(revocation):
            return False
        self._has_news = True
        if not self.book.is_member(revocation.terms.peer):
            self.on_evicted(revocation.terms.peer)
        return True

    def to_tell(self) -> list[Revocations]:
        """All evictions, for a peer that we have just met."""
        items = [encode_struct(one) for one in self.book.revocations.values()]
        steps = range(0, len(items), REVOCATIONS_PER_MESSAGE)
        return [Revocations(tuple(items[start : start + REVOCATIONS_PER_MESSAGE])) for start in steps]


def make_admissions(authorities: Authorities | None, path: Path | None) -> Admissions | None:
    """None: the run asks for no membership."""
    return Admissions(AdmissionBook(authorities), path) if authorities is not None and path is not None else None
