"""Keeps members, evictions and authorities on disk, and tells others of the latter two (protocol M4, M5, M7 to M10).

A member that was let in once is let in after a restart too, though its invite has expired meanwhile. What the file
holds is checked like what a peer sends: its signatures are the proof.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities
from dilocoxd.machines.admission.eviction import Contributors
from dilocoxd.machines.admission.gate import MEMBERS_MAX, AdmissionBook, Review
from dilocoxd.store.durable import write_json
from dilocoxd.swarm.discovery.identity import is_signed_by
from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.wire.admission import Revocation, decode_membership, decode_revocation
from dilocoxd.wire.authorities import AuthorityChange, decode_change
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.messages import AuthorityChanges, Revocations

FILE_BYTES_MAX: Final = 64 << 20
ITEMS_PER_MESSAGE: Final = 15
VOTES_OF_ONE: Final = Rate(per_s=1 / 60, burst=64)
"""So often a member's votes are taken up: what is, goes on to everybody."""


class Admissions:
    """The book with its file."""

    def __init__(self, book: AdmissionBook, path: Path) -> None:
        self.book = book
        self._path = path
        self._has_news = False
        self._saving = threading.Lock()
        """Held by who writes, as in PeersFile."""
        self.on_evicted: Callable[[PeerId], None] = lambda peer: None
        """Told of each peer that is no member any more."""
        self.on_reinstated: Callable[[PeerId], None] = lambda peer: None
        """Told of each peer that was evicted on a chain that is not ours any more."""
        self.on_authorities: Callable[[], None] = lambda: None
        """Told when other authorities are in force, or somebody signed a change beside one that is."""
        self._num_rivals = 0

    def note_change(self) -> None:
        """The book has a new member."""
        self._has_news = True

    def load(self) -> str:
        """Read the file; the first reason why it, or a part of it, could not be used, or empty."""
        try:
            if not self._path.exists():
                return ""
            if self._path.stat().st_size > FILE_BYTES_MAX:
                return f"{self._path}: larger than {FILE_BYTES_MAX} bytes"
            found = json.loads(self._path.read_text("ascii"))
            return next(iter(self._recall_all(found)), "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{self._path}: {type(error).__name__}: {error}"

    def _recall_all(self, found: Mapping[str, Any]) -> list[str]:
        book = self.book
        problems = [
            *self._recall(found.get("authorities", ()), lambda data: book.authorities.recall(decode_change(data))),
            *self._recall(
                found.get("authority_votes", ()), lambda data: book.authorities.recall_votes(decode_change(data))
            ),
        ]
        self._num_rivals = len(book.authorities.rivals())
        members = found["members"][: 2 * MEMBERS_MAX]
        problems += self._recall(found["revocations"], lambda data: book.recall(decode_revocation(data)))
        problems += self._recall(members, lambda data: book.recall_member(decode_membership(data)))
        book.on_credit.update(map(PeerId, found.get("on_credit", ())))
        problems += self._recall(found.get("votes", ()), lambda data: book.recall_votes(decode_revocation(data)))
        return problems + self._recall(found.get("waiting", ()), lambda data: book.vote(decode_revocation(data)))

    def _recall(self, texts: Sequence[str], bring_back: Callable[[bytes], object]) -> list[str]:
        """Why some are left out. They take along nothing that stands behind them: a membership may hang on a list that
        is not decided any more."""
        problems: list[str] = []
        for text in texts:
            try:
                bring_back(bytes.fromhex(text))
            except WireError as error:
                problems.append(f"{self._path}: {error}")
        return problems

    def save(self) -> None:
        """Write the file if there is news. Raises StoreError. Blocks."""
        with self._saving:
            self._save()

    def _save(self) -> None:
        if not self._has_news:
            return
        self._has_news = False
        book = self.book
        members = [encode_struct(proof).hex() for proof in (*book.members.values(), *book.set_aside())]
        revocations = [encode_struct(one).hex() for one in book.revocations.values()]
        votes = [encode_struct(one).hex() for one in book.votes()]
        waiting = [encode_struct(one).hex() for one in book.waiting()]
        content = {"members": members, "revocations": revocations, "votes": votes, "waiting": waiting}
        content["on_credit"] = sorted(book.on_credit)
        content["authorities"] = [encode_struct(one).hex() for one in book.authorities.known()]
        content["authority_votes"] = [encode_struct(one).hex() for one in book.authorities.open_votes()]
        content["authorities_in_force"] = [one.hash.hex() for one in book.authorities.in_force]
        try:
            write_json(self._path, content)
        except StoreError:
            self._has_news = True
            raise

    def take(self, message: Revocations) -> tuple[Revocation, ...]:
        """What is news, settled or counted. Raises WireError for the first that is not genuine."""
        found = (self.evict(one) for one in map(decode_revocation, message.items))
        return tuple(one for one in found if one is not None)

    def evict(self, revocation: Revocation) -> Revocation | None:
        """Settle one that authorities signed, or count its votes; what of it is news to us. Raises WireError."""
        if revocation.votes:
            waited = revocation in self.book.waiting()
            votes = self.book.vote(revocation)
            self._has_news = self._has_news or (not waited and revocation in self.book.waiting())
            news = Revocation(revocation.terms, (), votes) if votes else None
        else:
            news = revocation if self.book.revoke(revocation) else None
        if news is None:
            return None
        self._has_news = True
        if news.votes:
            self.review()
        else:
            self._tell_if_out(revocation.terms.peer)
        return news

    def take_changes(self, message: AuthorityChanges) -> tuple[AuthorityChange, ...]:
        """What is news of the authorities. Raises WireError for the first that is not genuine."""
        found = [self.change(one) for one in map(decode_change, message.items)]
        return tuple(one for one in found if one is not None)

    def change(self, change: AuthorityChange) -> AuthorityChange | None:
        """Settle a change of the authorities, or count its votes; what of it is news to us. Raises WireError."""
        book = self.book.authorities
        num_waiting = len(book.undecided.waiting)
        news = book.take(change, self.book.chain)
        self._has_news = self._has_news or news is not None or len(book.undecided.waiting) != num_waiting
        if news is not None:
            is_loaded = self.book.chain is not None
            self._act_on(self.book.review() if is_loaded else Review(has_new_authorities=book.follow()))
        return news

    def settle_credit(self) -> None:
        """We have caught up: who was let in by a void invite may be no member after all."""
        self._has_news = self._has_news or bool(self.book.on_credit)
        for peer in self.book.settle_credit():
            self.on_evicted(peer)

    def follow(self, chain: Contributors) -> None:
        """Count votes by this chain from now on; `review` is to be called when it has changed."""
        self.book.chain = chain
        self.review()

    def review(self) -> None:
        """The chain has changed: who is out, or in again, by the members' votes."""
        if not self.book.has_votes:
            return
        self._act_on(self.book.review())

    def _act_on(self, found: Review) -> None:
        num_rivals = len(self.book.authorities.rivals())
        if found.has_new_authorities or num_rivals > self._num_rivals:
            self._has_news = True
            self.on_authorities()
        self._num_rivals = num_rivals
        self._has_news = self._has_news or bool(found.evicted or found.reinstated)
        for peer in found.reinstated:
            self.on_reinstated(peer)
        for peer in found.evicted:
            self._tell_if_out(peer)

    def _tell_if_out(self, peer: PeerId) -> None:
        if not self.book.is_member(peer):
            self.on_evicted(peer)

    def to_tell(self) -> list[AuthorityChanges | Revocations]:
        """All that was decided or voted, for a peer that we have just met: authorities first, who sign the rest."""
        book = self.book
        changes = [encode_struct(one) for one in (*book.authorities.known(), *book.authorities.open_votes())]
        revocations = [encode_struct(one) for one in (*book.revocations.values(), *book.votes())]
        return [*map(AuthorityChanges, _parts(changes)), *map(Revocations, _parts(revocations))]


def _parts(items: list[bytes]) -> list[tuple[bytes, ...]]:
    steps = range(0, len(items), ITEMS_PER_MESSAGE)
    return [tuple(items[start : start + ITEMS_PER_MESSAGE]) for start in steps]


def make_admissions(authorities: Authorities | None, path: Path | None) -> Admissions | None:
    """None: the run asks for no membership."""
    if authorities is None or path is None:
        return None
    budget = Budget(time.monotonic, each=VOTES_OF_ONE)
    return Admissions(AdmissionBook(authorities, verify=is_signed_by, is_in_time=budget.take), path)
