"""What a restart keeps of votes on evictions (swarm/discovery/admissions.py)."""

from __future__ import annotations

from pathlib import Path

from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.vote_book import WAITING_MAX
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.wire.admission import MemberVote, Revocation, RevocationTerms
from dilocoxd.wire.entry import Signature

RUN = bytes(range(32))
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
