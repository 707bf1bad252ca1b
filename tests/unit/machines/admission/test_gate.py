"""Who is let in: time, uses, evictions (machines/admission/gate.py; protocol M3, M4)."""

from __future__ import annotations

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities, admit, certified, revoked
from dilocoxd.machines.admission.gate import CLOCK_SLACK_MS, AdmissionBook
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.swarm.discovery.bootstrap import FINAL_REFUSALS
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.refusals import NOT_LET_IN
from dilocoxd.wire.admission import InviteTerms, MembershipProof, Revocation, RevocationTerms
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.messages import PROTOCOL_MAJOR, Hello
from tests.unit.machines.admission.chains import Chain

NOW = 1_000_000
RUN = bytes(range(32))
AUTHORITY, INVITE = SigningKey(b"a" * 32), SigningKey(b"i" * 32)
AUTHORITIES = Authorities(RUN, (AUTHORITY.public,))
A, B, C = PeerId("A"), PeerId("B"), PeerId("C")


def membership(peer: PeerId, *, serial: int = 7, uses: int = 2, not_after_ms: int = NOW) -> MembershipProof:
    terms = InviteTerms(RUN, serial, INVITE.public, not_after_ms, uses, "contribute", RUN)
    return admit(certified(terms, AUTHORITIES, {0: AUTHORITY}), INVITE, peer)


def revocation(peer: PeerId, serial: int = 7) -> Revocation:
    return revoked(RevocationTerms(RUN, peer, serial), AUTHORITIES, {0: AUTHORITY})


def refusal(book: AdmissionBook, found: MembershipProof, peer: PeerId, now_ms: int = NOW) -> str:
    with pytest.raises(WireError) as caught:
        book.take_in(found, peer, now_ms)
    return caught.value.code


def test_time_and_uses_bind_only_who_is_new() -> None:
    book = AdmissionBook(AUTHORITIES)
    assert book.take_in(membership(A), A, NOW) and not book.take_in(membership(A), A, NOW)
    late = NOW + CLOCK_SLACK_MS + 1
    assert refusal(book, membership(B), B, late) == "invite_expired"
    assert book.take_in(membership(B), B, NOW + CLOCK_SLACK_MS)
    assert refusal(book, membership(C), C) == "invite_used_up"
    assert not book.take_in(membership(A), A, late) and book.is_member(A)


def test_old_member_that_is_new_to_us_is_let_in_though_its_invite_is_over() -> None:
    late = NOW + CLOCK_SLACK_MS + 1
    newcomer = AdmissionBook(AUTHORITIES, chain=Chain([]), is_catching_up=True)
    assert newcomer.take_in(membership(A), A, late) and newcomer.take_in(membership(B), B, late)
    settled = AdmissionBook(AUTHORITIES, chain=Chain(["AB"] * 3))
    assert settled.take_in(membership(A), A, late)
    assert refusal(settled, membership(C), C, late) == "invite_expired"


def test_restart_does_not_let_in_by_an_invite_that_known_members_have_used_up() -> None:
    book = AdmissionBook(AUTHORITIES, chain=Chain(["C"]))
    for peer in (A, B):
        book.take_in(membership(peer), peer, NOW)
    book.is_catching_up = True
    stranger = PeerId("X")
    assert refusal(book, membership(stranger), stranger) == "invite_used_up"
    assert book.take_in(membership(C), C, NOW), "it raced with the others, and is in the chain"
    for peer in map(PeerId, ("D", "E", "F")):
        assert book.take_in(membership(peer, serial=8), peer, NOW), "of three strangers one may be a member of old"


def test_member_may_change_its_invite() -> None:
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(A, uses=1), A, NOW)
    assert book.take_in(membership(A, serial=8), A, NOW)
    assert (book.num_uses(7), book.num_uses(8)) == (0, 1)


def test_forged_membership_changes_nothing() -> None:
    book = AdmissionBook(AUTHORITIES)
    stranger = SigningKey(b"s" * 32)
    terms = InviteTerms(RUN, 7, INVITE.public, NOW, 2, "contribute", RUN)
    forged = admit(certified(terms, AUTHORITIES, {0: stranger}), INVITE, A)
    assert refusal(book, forged, A) == "bad_certificate"
    assert refusal(book, membership(A), B) == "bad_membership"
    assert not book.members


def test_who_was_evicted_does_not_come_back_by_the_same_invite() -> None:
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(A), A, NOW)
    book.take_in(membership(B, serial=8), B, NOW)
    assert book.revoke(revocation(A)) and not book.revoke(revocation(A))
    assert not book.is_member(A) and book.is_member(B)
    assert refusal(book, membership(A), A) == "evicted"
    assert refusal(book, membership(C), C) == "invite_used_up"  # A has its key, and could call itself C
    assert book.take_in(membership(A, serial=9), A, NOW)


def test_newcomer_with_a_closed_invite_is_refused_before_it_is_told_anything() -> None:
    """It shows the invite with its first HELLO, so `dilocoxd join` ends there, and has written nothing."""
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(A), A, NOW)
    doors = Doorkeeper(book)
    hello = Hello(PROTOCOL_MAJOR, 0, "", NOW, b"", encode_struct(membership(C)), 0)
    assert doors.judge(C, hello, NOW, 0.0) == "visitor"
    assert book.revoke(revocation(A))
    with pytest.raises(WireError, match="closed when a site that came by it was evicted; ask for a new one") as refused:
        doors.judge(C, hello, NOW, 0.0)
    assert refused.value.code in NOT_LET_IN & FINAL_REFUSALS, "it is told at once, in one sentence"


def test_closed_invite_lets_no_newcomer_in_while_we_catch_up() -> None:
    """It printed `joining`, and wrote its directory; the others refused it then."""
    book = AdmissionBook(AUTHORITIES, chain=Chain(["AB"] * 3))
    for peer in (A, B):
        book.take_in(membership(peer, uses=9), peer, NOW)
    assert book.revoke(revocation(A))
    book.is_catching_up = True
    with pytest.raises(WireError, match="the invite is closed for new sites") as refused:
        book.check_visitor(membership(C, uses=9), C, NOW)
    assert refused.value.code == "not_ready", "it may be a member of old, and asks again"
    book.check_visitor(membership(B, uses=9), B, NOW)
    book.check_visitor(membership(C, serial=8), C, NOW)
    assert book.take_in(membership(C, uses=9), C, NOW), "who is at work already may be a member of old"


def test_who_was_evicted_comes_back_by_no_other_invite_that_is_over_though_entries_name_it() -> None:
    book = AdmissionBook(AUTHORITIES, chain=Chain(["AB"] * 3))
    book.take_in(membership(A), A, NOW)
    assert book.revoke(revocation(A))
    late = NOW + CLOCK_SLACK_MS + 1
    assert refusal(book, membership(A, serial=8), A, late) == "invite_expired"
    assert book.take_in(membership(A, serial=9, not_after_ms=late), A, late)
    assert not book.take_in(membership(A, serial=9, not_after_ms=late), A, 2 * late), "it is met"


def test_revocation_of_an_older_membership_leaves_the_newer_one() -> None:
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(A, serial=9), A, NOW)
    assert book.revoke(revocation(A, serial=7)) and book.is_member(A)


def test_revocation_needs_the_authorities() -> None:
    book = AdmissionBook(Authorities(RUN, (AUTHORITY.public, INVITE.public), threshold=2))
    with pytest.raises(WireError, match="signed by 1 of the authorities, the run asks for 2"):
        book.revoke(revocation(A))
