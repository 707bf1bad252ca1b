"""Who stands at the door: member, visitor or stranger, by the membership that a HELLO shows (protocol M5).

A *visitor* may join but has not begun to: it fetches manifest, text and first state, and uses up nothing of its
invite. A *stranger* has shown nothing, and gets a bare HELLO.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Literal

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.gate import AdmissionBook, Membership
from dilocoxd.wire.admission import MembershipProof, Revocation, decode_membership
from dilocoxd.wire.messages import Hello

Standing = Literal["member", "visitor", "stranger"]
VISITORS_MAX: Final = 256
VISIT_S: Final = 600.0
"""So long after its newest HELLO a visitor's connection is left alone: a first state may take that long to fetch."""


class Doorkeeper:
    """Asked with every HELLO. `book` None: a run that asks for no membership, or a newcomer that cannot judge yet."""

    def __init__(self, book: AdmissionBook | None = None, own: bytes = b"") -> None:
        self.book = book
        self.own = own
        """Our encoded membership, shown in each HELLO of ours."""
        self.on_change: Callable[[], None] = lambda: None
        """Told when somebody became a member."""
        self.on_unknown: Callable[[PeerId], None] = lambda peer: None
        """Told of whoever shows an invite of authorities that we do not know: it can tell us of them."""
        self._visitors: OrderedDict[PeerId, float] = OrderedDict()

    def judge(self, peer: PeerId, hello: Hello, now_ms: int, now_s: float, *, is_for_members: bool = False) -> Standing:
        """What `peer` is. Raises WireError for a membership that is not genuine, has expired, or was revoked.

        `is_for_members`: it opened a stream that no visitor opens. Its first message may overtake our hello's answer.
        """
        if self.book is None:
            return "member"
        if not hello.membership:
            return "stranger"
        proof = decode_membership(hello.membership)
        if hello.record or is_for_members:
            self._take_in(proof, peer, now_ms)
            return "member"
        with self._noticed(peer):
            self.book.check_visitor(proof, peer, now_ms)
        if self.book.is_member(peer):
            return "member"
        self._visitors[peer] = now_s
        self._visitors.move_to_end(peer)
        while len(self._visitors) > VISITORS_MAX:
            self._visitors.popitem(last=False)
        return "visitor"

    def accept_answer(self, peer: PeerId, hello: Hello, now_ms: int) -> None:
        """Whether who answered our HELLO belongs to the run. Raises PeerError, WireError."""
        if self.book is None:
            return
        if not hello.membership:
            raise PeerError(f"{peer} shows no membership: it is no member of the run, or does not take us for one")
        self._take_in(decode_membership(hello.membership), peer, now_ms)

    @contextlib.contextmanager
    def _noticed(self, peer: PeerId) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            if error.code == "unknown_authorities":
                self.on_unknown(peer)
            raise

    def _take_in(self, proof: MembershipProof, peer: PeerId, now_ms: int) -> None:
        assert self.book is not None
        with self._noticed(peer):
            is_new = self.book.take_in(proof, peer, now_ms)
        if is_new:
            self._visitors.pop(peer, None)
            self.on_change()

    def is_member(self, peer: PeerId) -> bool:
        """Whether `peer` is let in everywhere."""
        return self.book is None or self.book.is_member(peer)

    def is_evicted(self, peer: PeerId) -> bool:
        """Whether `peer` was a member and is none any more."""
        return self.book is not None and self.book.is_evicted(peer)

    def own_eviction(self) -> Revocation | None:
        """What ended the membership that we show; None: nothing that we know of. A fresh invite is another one."""
        own = self.own_membership()
        return self.book.revocations.get(own) if self.book is not None and own is not None else None

    def own_membership(self) -> Membership | None:
        """Which one we show; None: the run asks for none."""
        if not self.own:
            return None
        own = decode_membership(self.own)
        return own.peer, own.certificate.terms.serial

    def is_stranger(self, peer: PeerId, now_s: float) -> bool:
        """Whether a connection of `peer` serves nothing."""
        return not self.is_member(peer) and now_s - self._visitors.get(peer, -VISIT_S) >= VISIT_S
