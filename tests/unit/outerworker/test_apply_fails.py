"""An entry whose payload passed the check and cannot be read when it is applied: nothing changed, or no state left."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.outerworker.plan import make_plan
from dilocoxd.outerworker.results import reading
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import ApplyResult, CopyBase, LoadState, OpenState, StateReady
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
from tests.harness.outer_worker.in_parts import InnerParts
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import foreign_payload

MANIFEST = tiny_manifest(model={"num_layers": 1}, strategy={"segment_elements_max": 4096})
PLAN = make_plan(MANIFEST)
NUM_SEGMENTS = len(PLAN.segments)


class FailingDisk:
    """Gives EIO at the n-th read of a segment's results from now on, or never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self._read = reading.read_exactly
        monkeypatch.setattr(reading, "read_exactly", self.read)

    def read(self, fd: int, offset: int, length: int) -> memoryview:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")
        return self._read(fd, offset, length)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


def started(num_parts: int, folder: Path) -> tuple[OuterDaemon, tuple[Any, ...], StateReady]:
    """A worker at state 0, with snapshot 0; the ApplyResult of entry 0; the state that it leads to."""
    (folder / "payload").write_bytes(foreign_payload(PLAN, 7))
    entry = (ApplyResult, 0, str(folder / "payload"), 0, 0)
    calm = InnerWorker(PLAN)
    calm.do(LoadState, "")
    expected = calm.do(*entry)
    worker: OuterDaemon = InnerParts(MANIFEST, num_parts) if num_parts > 1 else InnerWorker(PLAN)
    worker.do(LoadState, "")
    worker.write_snapshot(folder / "0")  # type: ignore[attr-defined]
    return worker, entry, expected


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("segment", [1, NUM_SEGMENTS - 1])
def test_entry_that_fails_halfway_leaves_no_state(
    num_parts: int, segment: int, disk: FailingDisk, tmp_path: Path
) -> None:
    worker, entry, expected = started(num_parts, tmp_path)
    disk.left = NUM_SEGMENTS + segment + 1
    refused = worker.ask(*entry)
    assert isinstance(refused, WorkerFailed) and refused.kind == "not_loaded", refused
    assert "entry 0" in refused.detail and "Input/output error" in refused.detail
    for request in (entry, (CopyBase,)):
        again = worker.ask(*request)
        assert isinstance(again, WorkerFailed) and again.kind == "not_loaded", again
    assert num_parts > 1 or not worker.do(OpenState).is_loaded
    assert worker.do(LoadState, str(tmp_path / "0")).round == 0
    assert worker.do(*entry).state_digest == expected.state_digest


def test_entry_that_fails_before_anything_changed_can_be_asked_again(disk: FailingDisk, tmp_path: Path) -> None:
    worker, entry, expected = started(1, tmp_path)
    before = worker.read(local_buffers.ANCHOR), worker.do(OpenState).state_digest
    disk.left = NUM_SEGMENTS + 1
    refused = worker.ask(*entry)
    assert isinstance(refused, WorkerFailed) and refused.kind == "store"
    assert (worker.read(local_buffers.ANCHOR), worker.do(OpenState).state_digest) == before
    assert worker.do(*entry).state_digest == expected.state_digest


@pytest.mark.parametrize("num_parts", [1, 3])
def test_entry_that_fails_in_the_check_changes_nothing(num_parts: int, disk: FailingDisk, tmp_path: Path) -> None:
    worker, entry, expected = started(num_parts, tmp_path)
    before = worker.read(local_buffers.ANCHOR)
    disk.left = NUM_SEGMENTS
    refused = worker.ask(*entry)
    assert isinstance(refused, WorkerFailed) and refused.kind == "store"
    assert worker.read(local_buffers.ANCHOR) == before
    assert worker.do(*entry).state_digest == expected.state_digest
