"""Who joined by an invite to follow contributes nothing, whatever it offers (protocol M2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.daemon.round.roles import Roles, hold_if_observer
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import admit, certified
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.wire.admission import InviteTerms, MembershipProof
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.entry import Contribution, Signature
from dilocoxd.wire.messages import Leaving, Ready
from tests.unit.machines.admission.test_gate import AUTHORITIES, AUTHORITY, INVITE, NOW, RUN, A, B

OFFERED = Contribution(A, 3, 0, 10, 640, bytes(32))  # type: ignore[arg-type]
READY = Ready(0, 0, bytes(32), bytes(32), OFFERED, Signature(b"k", b"s"), None, 0)  # type: ignore[arg-type]


def membership(peer: PeerId, role: str, serial: int = 7) -> MembershipProof:
    terms = InviteTerms(RUN, serial, INVITE.public, NOW, 9, role, RUN)
    return admit(certified(terms, AUTHORITIES, {0: AUTHORITY}), INVITE, peer)


def roles(counted: list[tuple[str, str]]) -> Roles:
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(A, "observe"), A, NOW)
    book.take_in(membership(B, "contribute", 8), B, NOW)
    return Roles(book, lambda peer, rule, detail: counted.append((peer, rule)))


def test_offer_of_who_may_only_follow_is_not_heard_and_counted() -> None:
    counted: list[tuple[str, str]] = []
    heard = roles(counted).heard(A, READY)
    assert heard == replace(READY, contribution=None, offer=None)
    assert counted == [(A, "violation")]


def test_who_follows_is_heard_in_all_else_and_others_in_all() -> None:
    counted: list[tuple[str, str]] = []
    judge, silent = roles(counted), replace(READY, contribution=None, offer=None)
    for peer, message in ((A, silent), (A, Leaving(0, "")), (B, READY), (PeerId("C"), READY)):  # type: ignore[arg-type]
        assert judge.heard(peer, message) is message
    assert Roles(None, lambda *given: pytest.fail("nobody is judged")).heard(A, READY) is READY
    assert counted == []


def test_fresh_invite_lets_who_followed_contribute() -> None:
    counted: list[tuple[str, str]] = []
    judge = roles(counted)
    assert judge.book is not None
    judge.book.take_in(membership(A, "contribute", 9), A, NOW)
    assert judge.heard(A, READY) is READY and counted == []


class Site:
    """What is paused."""

    paused = ""

    def pause(self, reason: str) -> None:
        self.paused = reason

    def resume(self) -> None:
        self.paused = ""


@pytest.mark.parametrize(("role", "state"), [("observe", "paused"), ("contribute", "training")])
def test_site_that_may_only_follow_trains_nothing_and_says_why(role: str, state: str) -> None:
    site, lifecycle = Site(), Lifecycle()
    hold_if_observer(encode_struct(membership(A, role)), lifecycle, Pauses(site))
    lifecycle.enter("training")
    assert lifecycle.state == lifecycle.record_state == state
    for text in (site.paused, lifecycle.follows):
        assert ("lets it follow the run" in text) == (role == "observe")


def test_run_without_memberships_holds_nobody() -> None:
    site: Any = Site()
    hold_if_observer(b"", Lifecycle(), Pauses(site))
    assert site.paused == ""
