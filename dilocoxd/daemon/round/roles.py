"""What a member's invite allows: who may only follow trains nothing, and what it offers all the same is not heard.

Each site judges by the memberships that it was shown itself. Source: protocol/03-identity.md, M2.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.wire.admission import OBSERVE, decode_membership
from dilocoxd.wire.messages import Ready

ROLE: Final = "role"
FOLLOWS: Final = "this site's invite lets it follow the run, not contribute: it trains nothing"


def hold_if_observer(membership: bytes, lifecycle: Lifecycle, pauses: Pauses) -> None:
    """The trainers of a site with such an invite stand still. `membership`: our own, encoded; empty: the run asks for
    none."""
    if membership and decode_membership(membership).certificate.terms.role == OBSERVE:
        lifecycle.follows = FOLLOWS
        pauses.hold(ROLE, FOLLOWS)


@dataclass(frozen=True, slots=True)
class Roles:
    """Of the members that this site knows. `book` None: the run asks for no membership, so all may contribute."""

    book: AdmissionBook | None
    count_bad: Callable[[str, str, str], None]
    """(peer, rule, detail)"""

    def heard(self, peer: PeerId, message: Any) -> Any:
        """`message` without a contribution that its sender may not make; that is counted."""
        if not isinstance(message, Ready) or message.contribution is None:
            return message
        if self.book is None or self.book.may_contribute(peer):
            return message
        self.count_bad(peer, "violation", "offers a contribution, and its invite lets it follow only")
        return replace(message, contribution=None, offer=None)
