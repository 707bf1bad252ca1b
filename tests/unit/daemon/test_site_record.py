"""site.json: what was saved is loaded; what cannot be understood is refused rather than guessed."""

import json
from pathlib import Path

import pytest

from dilocoxd.daemon.site.record import FILE_NAME, load_record, note_durably, overlapped, save_record
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
    note_durably(tmp_path, ForgetWork(PhaseId(1)))
    note_durably(tmp_path, ForgetWork(PhaseId(7)))
    assert kept.contents() == {2: {2: 1}}
    note_durably(tmp_path, PersistRecord(RECORD))
    assert load_record(tmp_path) == RECORD


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
