"""A snapshot sees every segment as it was when it was ordered; signs of life; headers of tensor files."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from dilocoxd.outerworker import progress
from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import UpdateJournal
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.shared_state import leaf_in
from dilocoxd.outerworker.snapshot import SnapshotWriter
from dilocoxd.outerworker.tensor_file import snapshot_files
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store import snapshots
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.tensor_header import TensorEntry, encode_header, read_header
from dilocoxd.wire.local.outer_worker import SnapshotSaved, WriteSnapshot
from dilocoxd.wire.local.worker import WorkerAlive, WorkerFailed
from dilocoxd.wire.placement import OuterPart
from dilocoxd.wire.state_digest import root_of
from tests.harness.outer_worker.daemon_end import tiny_manifest


class Recorder:
    """Keeps what would go to the daemon."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def make_workspace(recorder: Recorder, plan: OuterPlan | None = None) -> Workspace:
    """A workspace on anonymous memory with a random state 3."""
    plan = plan or make_plan(tiny_manifest())
    buffers = MappedBuffers(plan, {buffer.name: mmap.mmap(-1, buffer.size) for buffer in plan.described().buffers}, {})
    workspace = Workspace(plan, buffers, UpdateJournal(buffers.journal, plan.sha256), Reporter(recorder))
    generator = torch.Generator().manual_seed(1)
    buffers.anchor.copy_(torch.randn(buffers.anchor.numel(), generator=generator))
    buffers.momentum.copy_(torch.randn(buffers.momentum.numel(), generator=generator))
    root = root_of(3, b"", [leaf_in(workspace, segment, None) for segment in workspace.plan.segments])
    workspace.journal.write(is_loaded=True, round=3, **root._asdict())
    return workspace


@pytest.mark.parametrize("order", ["updates first", "snapshot first", "between"])
def test_segment_is_copied_before_it_changes(tmp_path: Path, order: str) -> None:
    recorder = Recorder()
    workspace = make_workspace(recorder)
    writer = SnapshotWriter(workspace)
    before = workspace.state.state_digest
    writer.start(WriteSnapshot(9, str(tmp_path / "3")))
    if order == "snapshot first":
        writer.finish()
    for segment in workspace.plan.segments:
        if order == "between" and segment.index == 2:
            writer.finish()
        writer.before_change(segment)
        workspace.anchor_of(segment).zero_()
        workspace.buffers.momentum_of(segment).zero_()
    writer.finish()
    (answer,) = recorder.sent
    assert isinstance(answer, SnapshotSaved)
    index = snapshots.verify(tmp_path / "3")
    assert index.state_digest == before.hex()
    with safe_open(tmp_path / "3" / snapshots.ANCHOR_NAME, "pt") as file:
        assert not any(bool((file.get_tensor(name) == 0).all()) for name in file.keys())  # noqa: SIM118
        assert file.metadata() == {"run_id": workspace.plan.run_id, "round": "3"}


@pytest.mark.parametrize("part", range(3))
def test_part_takes_room_for_its_own_segments_in_files_of_the_whole_length(part: int, tmp_path: Path) -> None:
    """Momentum, norms and all: what the others hold is a hole until they write it, here or on another machine."""
    plan = make_plan(tiny_manifest(model={"vocab_size": 1 << 14}), OuterPart(part, 3))
    recorder = Recorder()
    writer = SnapshotWriter(make_workspace(recorder, plan))
    writer.start(WriteSnapshot(9, str(tmp_path / "3")))
    writer.finish()
    assert isinstance(recorder.sent[-1], SnapshotSaved)
    share = sum(segment.numel for segment in plan.segments) / plan.layout.numel
    assert 0.25 < share < 0.42
    found = {path.name: path.stat() for path in snapshots.temporary_directory(tmp_path / "3").iterdir()}
    assert len(found) == 3
    for name, entries in snapshot_files(plan):
        whole = sum(entry.num_bytes for entry in entries)
        assert whole < found[name].st_size < whole + 4096
        assert found[name].st_blocks * 512 < share * whole + 5 * 4096


def test_write_error_of_an_update_ends_the_snapshot_only(tmp_path: Path) -> None:
    recorder = Recorder()
    workspace = make_workspace(recorder)
    writer = SnapshotWriter(workspace)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RequestFailed, match="preparing a snapshot"):
        writer.start(WriteSnapshot(9, str(tmp_path / "file" / "3")))
    writer.before_change(workspace.plan.segments[0])
    assert recorder.sent == []
    writer.start(WriteSnapshot(10, str(tmp_path / "3")))
    writer.finish()
    assert isinstance(recorder.sent[0], SnapshotSaved)
    assert not any(isinstance(message, WorkerFailed) for message in recorder.sent)


def test_progress_is_reported_at_most_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    recorder = Recorder()
    report = Reporter(recorder)
    report.begin("apply", 200)
    for step in range(200):
        now[0] += 0.02
        report.step(step)
    assert all(isinstance(message, WorkerAlive) and message.doing == "apply" for message in recorder.sent)
    assert 3 <= len(recorder.sent) <= 4
    assert [message.per_mille for message in recorder.sent] == sorted(message.per_mille for message in recorder.sent)


def test_header_names_dtypes_shapes_and_offsets(tmp_path: Path) -> None:
    entries = [TensorEntry("b", (2, 3)), TensorEntry("a", (5,), "U8")]
    path = tmp_path / "x.safetensors"
    header = encode_header(entries, {"k": "v"})
    path.write_bytes(header + bytes(24) + bytes(range(5)))
    assert len(header) % 8 == 0
    assert read_header(path) == (len(header), entries, {"k": "v"})
    with safe_open(path, "pt") as file:
        assert file.get_tensor("a").tolist() == [0, 1, 2, 3, 4]
        assert file.get_tensor("b").shape == (2, 3)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x05" + bytes(7) + b"12", b"\x02" + bytes(7) + b"[]"])
def test_bytes_that_are_no_tensor_file_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        read_header(path)
