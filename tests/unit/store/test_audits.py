"""Evidence on disk: there is always room for the newest, and whoever lies often pushes out nothing of others."""

from pathlib import Path

from dilocoxd.ids import Attempt, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.store.audits import EVIDENCE_MAX, AuditFolders, read_case, read_votes, write_case, write_votes
from dilocoxd.wire.audit import AuditCase, ShareProof
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedVote

SIGNED = Signature(b"k", b"s")


def case(owner: str, number: int) -> AuditCase:
    named = Contribution(PeerId("Qma"), PhaseId(0), RoundIndex(0), 1, 10, bytes(32))
    entry = Entry(RunId("run"), RoundIndex(number), bytes(32), bytes(32), (named,), (bytes(32),), 0, 0, 1, (), ())
    return AuditCase(entry, (SIGNED,), 0, owner, 0, b"", (ShareProof(bytes(32), ()),))


def keep(folders: AuditFolders, owner: str, number: int) -> Path:
    folder = folders.begin(number, 0)
    write_case(folder, case(owner, number))
    return folders.keep(folder)


def test_newest_evidence_always_has_room_and_who_lies_often_pushes_out_its_own(tmp_path: Path) -> None:
    folders = AuditFolders(tmp_path)
    others = [keep(folders, owner, 0) for owner in ("Qmb", "Qmc", "")]
    often = [keep(folders, "Qmliar", number) for number in range(1, EVIDENCE_MAX + 10)]
    assert folders.kept() == sorted([*others, *often[-(EVIDENCE_MAX - len(others)) :]])
    assert keep(folders, "Qmd", 3) in folders.kept() and len(folders.kept()) == EVIDENCE_MAX


def test_what_cannot_be_read_goes_first(tmp_path: Path) -> None:
    folders = AuditFolders(tmp_path)
    kept = [keep(folders, f"Qm{number}", number) for number in range(EVIDENCE_MAX)]
    (kept[5] / "case").write_bytes(b"?")
    newest = keep(folders, "Qmx", 99)
    assert folders.kept() == sorted([*kept[:5], *kept[6:], newest])


def test_votes_beside_a_case_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = AuditFolders(tmp_path).begin(3, 0)
    assert read_votes(folder) == ()
    votes = (SignedVote(PeerId("Qma"), Attempt(2), 5, SIGNED),)
    write_case(folder, case("Qmb", 3))
    write_votes(folder, votes)
    assert read_votes(folder) == votes and read_case(folder).owner == "Qmb"
