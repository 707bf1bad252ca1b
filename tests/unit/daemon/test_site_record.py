"""site.json: what was saved is loaded; what cannot be understood is refused rather than guessed."""

import json
from pathlib import Path

import pytest

from dilocoxd.daemon.site.record import (
    FILE_NAME,
    NUMBERS_AHEAD,
    SiteRecordFile,
    load_record,
    overlapped,
    save_record,
)
from dilocoxd.daemon.site.saved_feedback import read_saved
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, PhaseId, RoundIndex
from dilocoxd.machines.phase.outputs import FinishOrder, ForgetWork, PersistRecord, RunOuter
from dilocoxd.machines.phase.settings import SavedFeedback, SiteRecord
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, work_directory
from dilocoxd.store.tensor_header import encode_header
from dilocoxd.wire.local.outer_worker import ApplyResult, FormContribution, SaveSite

RECORD = SiteRecord(7, PhaseId(3))


def test_a_new_run_starts_with_phase_zero(tmp_path: Path) -> None:
    assert load_record(tmp_path) == SiteRecord()


@pytest.mark.parametrize("record", [RECORD, SiteRecord()])
def test_saved_is_loaded(tmp_path: Path, record: SiteRecord) -> None:
    save_record(tmp_path, SiteRecord(1))
    save_record(tmp_path, record)
    assert load_record(tmp_path) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{}",
        json.dumps({"phases_reserved": 1}),
        json.dumps({"phases_reserved": None}),
        '{"phases_reserved": "7", "last_settled": null}',
        '{"phases_reserved": -1, "last_settled": null}',
        '{"phases_reserved": 1, "last_settled": true}',
    ],
)
def test_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(StoreError, match=r"site\.json"):
        load_record(tmp_path)


def test_record_that_cannot_be_written_is_a_store_error_and_the_old_one_stays(tmp_path: Path) -> None:
    save_record(tmp_path, RECORD)
    (tmp_path / (FILE_NAME + ".tmp")).mkdir()
    with pytest.raises((StoreError, OSError)):
        save_record(tmp_path, SiteRecord(99))
    assert load_record(tmp_path) == RECORD


def test_work_that_is_not_owed_is_forgotten_durably(tmp_path: Path) -> None:
    kept = KeptWorkStore(work_directory(tmp_path))
    for phase in (1, 2):
        kept.keep(KeptWork(PhaseId(phase), 3, Digest(bytes(32)), content=((PhaseId(phase), 1),)), [])
    file = SiteRecordFile(tmp_path)
    file.note(ForgetWork(PhaseId(1)))
    file.note(ForgetWork(PhaseId(7)))
    assert kept.contents() == {2: {2: 1}}
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize("is_included", [True, False])
def test_what_no_entry_has_is_written_every_round_and_all_else_with_the_numbers(
    tmp_path: Path, is_included: bool
) -> None:
    """An offer waits for the numbers that it asks for, and must not wait for the disk."""
    file, written = SiteRecordFile(tmp_path), list[PhaseId | None]()
    for phase in range(3 * NUMBERS_AHEAD):
        settled = PhaseId(phase - 1) if phase else None
        file.note(PersistRecord(SiteRecord(phase + 1, settled), is_derived=is_included))
        before = (tmp_path / FILE_NAME).stat().st_ino
        file.note(PersistRecord(SiteRecord(phase + 1, settled)))  # before the offer
        assert (tmp_path / FILE_NAME).stat().st_ino == before
        if is_included or load_record(tmp_path).last_settled == settled:
            written.append(load_record(tmp_path).last_settled)
    assert len(written) == 3 * NUMBERS_AHEAD
    assert len(set(written)) <= (5 if is_included else len(written))


def test_numbers_are_durable_before_they_are_used_and_none_comes_again(tmp_path: Path) -> None:
    used = 0
    for num_phases in (0, 1, 3, NUMBERS_AHEAD - 1, NUMBERS_AHEAD, 40, 1):
        file = SiteRecordFile(tmp_path)  # a daemon that was killed
        first = file.durable.phases_reserved
        assert first >= used, "a number was used twice"
        for number in range(first, first + num_phases):
            file.note(PersistRecord(SiteRecord(number + 1)))
            assert load_record(tmp_path).phases_reserved > number
            used = number + 1
        assert load_record(tmp_path).phases_reserved <= used + NUMBERS_AHEAD, "more is skipped than was reserved"


def test_numbers_that_could_not_be_reserved_are_asked_for_again(tmp_path: Path) -> None:
    file = SiteRecordFile(tmp_path)
    (tmp_path / (FILE_NAME + ".tmp")).mkdir()
    with pytest.raises((StoreError, OSError)):
        file.note(PersistRecord(RECORD))
    (tmp_path / (FILE_NAME + ".tmp")).rmdir()
    file.note(PersistRecord(RECORD))
    assert load_record(tmp_path).last_settled == RECORD.last_settled
    assert load_record(tmp_path).phases_reserved >= RECORD.phases_reserved


@pytest.mark.parametrize("content", ["", "3:1 5:-1"])
def test_feedback_file_says_what_it_holds(tmp_path: Path, content: str) -> None:
    path = tmp_path / "feedback.safetensors"
    assert read_saved(path) is None
    path.write_bytes(encode_header([], {"phase": "7", "in_flight": "-1", "content": content}))
    expected = {PhaseId(3): 1, PhaseId(5): -1} if content else {}
    assert read_saved(path) == SavedFeedback(PhaseId(7), None, expected)
    path.write_bytes(path.read_bytes()[:-9])
    assert read_saved(path) is None


def test_an_entry_is_applied_while_the_record_reaches_the_disk() -> None:
    note, apply = PersistRecord(RECORD), RunOuter(1, ApplyResult(1, RoundIndex(4), "", 0, 0))
    assert overlapped([note, apply]) == [apply, note]
    assert overlapped([note, note, apply]) == [note, apply, note]


@pytest.mark.parametrize(
    "then",
    [
        FinishOrder(1, None),
        RunOuter(1, FormContribution(1, PhaseId(8), 0)),
        RunOuter(1, SaveSite(1, "feedback", PhaseId(3))),
    ],
)
def test_all_else_waits_for_the_record(then: FinishOrder | RunOuter) -> None:
    apply = RunOuter(2, ApplyResult(2, RoundIndex(4), "", 0, 0))
    assert overlapped([PersistRecord(RECORD), then, apply]) == [PersistRecord(RECORD), then, apply]
