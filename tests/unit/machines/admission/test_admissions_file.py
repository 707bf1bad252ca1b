"""What a restart keeps of votes on evictions (swarm/discovery/admissions.py)."""

from __future__ import annotations

from pathlib import Path

from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities, admit, certified, revoked
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.machines.admission.vote_book import WAITING_MAX
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.wire.admission import InviteTerms, MembershipProof, MemberVote, Revocation, RevocationTerms
from dilocoxd.wire.authorities import AuthorityChange, AuthorityTerms
from dilocoxd.wire.entry import Signature
from tests.unit.machines.admission.chains import Chain

RUN = bytes(range(32))
OLD, INVITE = SigningKey(b"o" * 32), SigningKey(b"i" * 32)
FIRST = Authorities(RUN, (OLD.public,))
A, B, X = map(PeerId, "ABX")
NUM_UNDECIDED = 2 * WAITING_MAX


def made(path: Path) -> Admissions:
    authorities = Authorities(RUN, (bytes(32),))
    return Admissions(AdmissionBook(authorities, verify=lambda peer, signature, text: True), path)


def votes(target: str, height: int) -> Revocation:
    vote = MemberVote(PeerId("A"), height, bytes(32), Signature(b"k" * 32, b"s" * 64))
    return Revocation(RevocationTerms(RUN, PeerId(target), 7), (), (vote,))


def test_votes_outlive_restarts_also_where_the_chain_is_not_loaded_in_between(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    first = made(path)
    for number in range(NUM_UNDECIDED):
        first.book.recall_votes(votes(f"x{number:03}", 5))
    first.evict(votes("far", 10**6))
    first.save()
    second = made(path)
    assert not second.load()
    second.note_change()
    second.save()
    third = made(path)
    assert not third.load()
    assert len(third.book.undecided.votes) == NUM_UNDECIDED
    assert third.book.waiting() == (votes("far", 10**6),)


def test_votes_on_authorities_count_as_soon_as_the_chain_has_grown_to_them(tmp_path: Path) -> None:
    grown, found = Chain(["ABC"] * 20), made(tmp_path / "members.json")
    head = grown.hash_at(20) or b""
    cast = tuple(MemberVote(PeerId(peer), 20, head, Signature(b"k" * 32, b"s" * 64)) for peer in "AB")
    terms, told = AuthorityTerms(RUN, 1, RUN, (b"n" * 32,), 1, 0), []
    found.on_authorities = lambda: told.append(found.book.authorities.now.number)
    found.follow(Chain([]))
    assert found.change(AuthorityChange(terms, (), cast)) is None
    found.book.chain = grown
    found.review()
    assert told == [1], "no message comes any more that would have them counted"
    found.book.chain = Chain(["ABC"] * 21, "fork")
    found.review()
    assert told == [1, 0]


def membership(peer: PeerId, serial: int) -> MembershipProof:
    terms = InviteTerms(RUN, serial, INVITE.public, 10**6, 9, "contribute", RUN)
    return admit(certified(terms, FIRST, {0: OLD}), INVITE, peer)


def test_who_was_let_in_before_a_restart_that_came_too_early_is_judged_after_it(tmp_path: Path) -> None:
    path, chain = tmp_path / "members.json", Chain(["A"])

    def started() -> Admissions:
        found = Admissions(AdmissionBook(FIRST), path)
        assert not found.load()
        found.book.is_catching_up = True
        return found

    first = started()
    assert first.evict(revoked(RevocationTerms(RUN, B, 7), FIRST, {0: OLD})) is not None
    for peer, serial in ((A, 7), (X, 7), (B, 8)):
        assert first.book.take_in(membership(peer, serial), peer, 0)
    first.save()
    second = started()
    second.follow(chain)
    second.settle_credit()
    assert sorted(second.book.members) == [A, B], "X shows an invite that was closed"
    second.save()
    third = started()
    assert not third.book.on_credit and sorted(third.book.members) == [A, B]


def test_what_hangs_on_a_list_that_is_lost_takes_nothing_else_along(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    first, lost = Admissions(AdmissionBook(FIRST), path), Authorities(RUN, (OLD.public,), change=bytes(32))
    terms = InviteTerms(RUN, 9, INVITE.public, 10**6, 9, "contribute", lost.listed)
    first.book.members = {X: admit(certified(terms, lost, {0: OLD}), INVITE, X), A: membership(A, 7)}
    first.book.settle(revoked(RevocationTerms(RUN, X, 1), FIRST, {0: INVITE}))
    first.book.settle(revoked(RevocationTerms(RUN, B, 1), FIRST, {0: OLD}))
    first.note_change()
    first.save()
    second = Admissions(AdmissionBook(FIRST), path)
    assert "members.json: bad_certificate" in second.load()
    assert sorted(second.book.members) == [A] and second.book.is_evicted(B)
