"""When donors are to blame for a snapshot that did not load, and when our own disk or worker is (L8.4)."""

from pathlib import Path

import pytest

from dilocoxd.daemon.recovery.steps import CORRUPT, _is_made_up
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.store.snapshots import ANCHOR_NAME, INDEX_NAME, SnapshotIndex, hash_chunks

OTHER_STATE = StoreError("not the state that entry 4 was voted on")


@pytest.fixture
def download(tmp_path: Path) -> Path:
    """One whose files are what its index describes."""
    (tmp_path / ANCHOR_NAME).write_bytes(bytes(1000))
    index = SnapshotIndex("test", 4, "0" * 64, "0" * 64, "", (hash_chunks(tmp_path / ANCHOR_NAME),))
    (tmp_path / INDEX_NAME).write_bytes(index.encode())
    return tmp_path


@pytest.mark.parametrize("error", [OTHER_STATE, RequestRefused(CORRUPT, "its tensors have another digest")])
def test_who_described_a_sound_download_of_another_state_made_it_up(
    download: Path, error: StoreError | WorkerError
) -> None:
    assert _is_made_up(download, error)


@pytest.mark.parametrize("error", [WorkerError("it died"), RequestRefused("store", "no space left")])
def test_nobody_is_to_blame_when_our_worker_fails(download: Path, error: WorkerError) -> None:
    assert not _is_made_up(download, error)


def test_nobody_is_to_blame_when_our_disk_turns_a_bit(download: Path) -> None:
    (download / ANCHOR_NAME).write_bytes(bytes(999) + b"\1")
    assert not _is_made_up(download, OTHER_STATE)
    (download / ANCHOR_NAME).unlink()
    assert not _is_made_up(download, OTHER_STATE)
