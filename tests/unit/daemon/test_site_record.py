"""site.json: what was saved is loaded; what cannot be understood is refused rather than guessed."""

import json
from pathlib import Path

import pytest

from dilocoxd.daemon.site_record import FILE_NAME, load_record, save_record
from dilocoxd.errors import StoreError
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.rounds.phase_events import SiteRecord

RECORD = SiteRecord(7, PhaseId(3), PhaseId(2), PhaseId(4), PhaseId(5), RoundIndex(6))


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
        '{"phases_reserved": "7", "last_settled": null, "saved_phase": null, "saved_in_flight": null,'
        ' "formed_phase": null, "formed_round": null}',
        '{"phases_reserved": -1, "last_settled": null, "saved_phase": null, "saved_in_flight": null,'
        ' "formed_phase": null, "formed_round": null}',
        '{"phases_reserved": 1, "last_settled": true, "saved_phase": null, "saved_in_flight": null,'
        ' "formed_phase": null, "formed_round": null}',
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
