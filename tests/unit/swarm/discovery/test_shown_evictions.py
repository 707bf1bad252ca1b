"""What a refusal shows to a site that is out is believed only if it is genuine, and about its own membership."""

from __future__ import annotations

from pathlib import Path

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import revoked
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.swarm.discovery.decisions import Decisions
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.rejections import KNOCKS_TOLD_EVERY_S, Rejections
from dilocoxd.telemetry.catalogue import InputRejected
from dilocoxd.wire.admission import RevocationTerms
from dilocoxd.wire.codec import encode_struct
from tests.unit.machines.admission.test_gate import AUTHORITIES, NOW, RUN, A, B, membership, revocation


class Site:
    """The admission side of B, a member by invite `serial`."""

    def __init__(self, folder: Path, serial: int = 7) -> None:
        self.admissions = Admissions(AdmissionBook(AUTHORITIES), folder / "members.json")
        self.doors = Doorkeeper(self.admissions.book, encode_struct(membership(B, serial=serial)))
        self.decisions = Decisions(self.admissions, lambda news: None, lambda event: None)

    def refused(self, proof: bytes) -> None:
        self.decisions.take_refusal(A, proof, self.doors.own_membership())


def test_member_that_refuses_shows_the_revocation_and_the_evicted_site_believes_it(tmp_path: Path) -> None:
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(B), B, NOW)
    book.revoke(revocation(B))
    with pytest.raises(WireError) as caught:
        book.check(membership(B), B, NOW)
    site = Site(tmp_path)
    assert site.doors.own_eviction() is None
    site.refused(caught.value.proof)
    assert site.doors.own_eviction() == revocation(B) and site.decisions.shown_by == A
    site.admissions.save()
    again = Site(tmp_path)
    assert not again.admissions.load() and again.doors.own_eviction() == revocation(B)


@pytest.mark.parametrize(
    ("proof", "code"),
    [
        (
            encode_struct(revoked(RevocationTerms(RUN, B, 7), AUTHORITIES, {0: SigningKey(b"s" * 32)})),
            "bad_certificate",
        ),
        (encode_struct(revocation(A)), "bad_membership"),
        (encode_struct(revocation(B, serial=8)), "bad_membership"),
        (b"\xff", "malformed"),
    ],
    ids=["forged", "of another site", "of another membership", "no revocation"],
)
def test_refusal_with_another_proof_changes_nothing(proof: bytes, code: str, tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(WireError) as caught:
        site.refused(proof)
    assert caught.value.code == code and site.doors.own_eviction() is None and not site.admissions.book.revocations


def test_refusal_without_a_proof_is_only_a_claim(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.refused(b"")
    assert site.doors.own_eviction() is None


def test_fresh_invite_ends_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.refused(encode_struct(revocation(B)))
    site.admissions.save()
    back = Site(tmp_path, serial=8)
    assert not back.admissions.load() and back.doors.own_eviction() is None
    others = AdmissionBook(AUTHORITIES)
    others.revoke(revocation(B))
    assert others.take_in(membership(B, serial=8), B, NOW)


def test_who_is_kept_out_and_knocks_on_is_told_of_once_and_then_with_a_count() -> None:
    now, told = [0.0], []
    guard = PeerGuard(lambda: now[0])
    found = Rejections(guard, lambda: now[0], told.append)
    for _ in range(5):
        found.count(PeerId("B"), WireError("evicted", "out"))
    found.count(PeerId("C"), WireError("evicted", "out"))
    assert [(one.peer, one.detail) for one in told] == [("B", "out"), ("C", "out")]
    now[0] = KNOCKS_TOLD_EVERY_S
    found.count(PeerId("B"), WireError("evicted", "out"))
    assert isinstance(told[-1], InputRejected) and told[-1].detail == "out (4 times more since it was told last)"
    for _ in range(2):
        found.count(PeerId("B"), WireError("malformed", "bad"))
    assert [one.code for one in told[-2:]] == ["malformed"] * 2
    assert guard.bad_input()["B"] == {"evicted": 6, "malformed": 2}
