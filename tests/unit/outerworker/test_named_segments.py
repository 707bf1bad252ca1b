"""Where a state turns out to hold other bits, the segment is named: in a snapshot, and when a state is made again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch

from dilocoxd.outerworker.plan import make_plan
from dilocoxd.outerworker.schedule_memory import HEADER_BYTES
from dilocoxd.store import snapshots
from dilocoxd.store.tensor_header import read_header
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import ApplyResult, LoadState, StateReady
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form

WRONG = 2


def worker_with_two_rounds(directory: Path) -> tuple[InnerWorker, bytes]:
    """A worker in state 1, its snapshot of it, and the payload of entry 1, which is to be applied."""
    worker = InnerWorker(make_plan(tiny_manifest()))
    worker.do(LoadState, "")
    site = Site("Qma", worker)
    for index in range(2):
        assert worker.described is not None
        update = torch.randn(worker.described.numel, generator=torch.Generator().manual_seed(index))
        form(site, update, index)
        owned = exchange([site], (0,), {})
        if not index:
            commit([site], 0, 0, owned)
            worker.write_snapshot(directory / "1")
    return worker, worker.read(local_buffers.RESULT)


def flip(worker: InnerWorker, buffer: str, position: int) -> None:
    """One bit of one value, as failing memory does it."""
    (byte,) = worker.read(buffer, 4 * position, 1)
    worker.write(buffer, bytes([byte ^ 1]), 4 * position)


@pytest.mark.parametrize("buffer", [local_buffers.ANCHOR, local_buffers.MOMENTUM])
def test_segment_that_was_wrong_is_named_when_the_state_is_made_again(tmp_path: Path, buffer: str) -> None:
    worker, payload = worker_with_two_rounds(tmp_path)
    plan = make_plan(tiny_manifest())
    flip(worker, buffer, plan.segments[WRONG].start + 5)
    wrong: StateReady = worker.do(ApplyResult, 1, "", 0, 0)
    assert not wrong.differing
    loaded: StateReady = worker.do(LoadState, str(tmp_path / "1"))
    assert loaded.round == 1 and not loaded.differing, "state 1 was never seen wrong"
    worker.write(local_buffers.RESULT, payload)
    again: StateReady = worker.do(ApplyResult, 1, "", 0, 0)
    assert again.state_digest != wrong.state_digest
    assert (again.differing, again.num_differing) == ((WRONG,), 1)
    index = snapshots.read_index(tmp_path / "1")
    assert [values for values, _ in index.segments] == [segment.numel for segment in plan.segments]
    assert all(text for _, text in index.segments)


def test_same_bits_again_name_nothing(tmp_path: Path) -> None:
    worker, payload = worker_with_two_rounds(tmp_path)
    right: StateReady = worker.do(ApplyResult, 1, "", 0, 0)
    worker.do(LoadState, str(tmp_path / "1"))
    worker.write(local_buffers.RESULT, payload)
    again: StateReady = worker.do(ApplyResult, 1, "", 0, 0)
    assert again.state_digest == right.state_digest
    assert (again.differing, again.num_differing) == ((), 0)


def republish(directory: Path, index: snapshots.SnapshotIndex) -> None:
    """As who made the files and their hashes, but not the state that they are said to be."""
    files = tuple(snapshots.hash_chunks(directory / file.name) for file in index.files)
    (directory / snapshots.INDEX_NAME).write_bytes(dataclasses.replace(index, files=files).encode())


def refusal(worker: InnerWorker, directory: Path) -> str:
    answer = worker.ask(LoadState, str(directory))
    assert isinstance(answer, WorkerFailed), answer
    return answer.detail


def test_snapshot_of_another_state_is_refused_with_the_segment(tmp_path: Path) -> None:
    worker, _ = worker_with_two_rounds(tmp_path)
    directory, plan = tmp_path / "1", make_plan(tiny_manifest())
    index = snapshots.read_index(directory)
    path = directory / snapshots.ANCHOR_NAME
    data = bytearray(path.read_bytes())
    data[len(data) - 4 * (plan.layout.numel - plan.segments[WRONG].start)] ^= 1
    path.write_bytes(data)
    republish(directory, index)
    assert f"(in segment {WRONG});" in refusal(worker, directory)
    bare = dataclasses.replace(index, segments=tuple((values, "") for values, _ in index.segments))
    republish(directory, bare)
    text = refusal(worker, directory)
    assert "state digest" in text and "in segment" not in text


@pytest.mark.parametrize("what", ["anchor", "cuts"])
def test_index_that_would_mislead_an_export_is_refused(tmp_path: Path, what: str) -> None:
    worker, _ = worker_with_two_rounds(tmp_path)
    directory = tmp_path / "1"
    index = snapshots.read_index(directory)
    if what == "anchor":
        republish(directory, dataclasses.replace(index, anchor_sha256="ab" * 32))
        assert "another hash of the anchor" in refusal(worker, directory)
    else:
        republish(directory, dataclasses.replace(index, segments=index.segments[1:]))
        assert "other segments than the run" in refusal(worker, directory)


@pytest.mark.parametrize(
    "segments",
    ["x", [[1]], [["1", ""]], [[0, ""]], [[True, ""]], [[1, "zz"]], [[1, "ab"]], [[1, 5]], [[1, ""]] * 65537],
)
def test_hostile_segments_of_an_index_are_refused(tmp_path: Path, segments: object) -> None:
    worker_with_two_rounds(tmp_path)
    index = snapshots.read_index(tmp_path / "1")
    body = json.loads(index.encode())
    del body["sha256"]
    body["segments"] = segments
    body["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    with pytest.raises(snapshots.Corrupt):
        snapshots.decode_index(json.dumps(body).encode(), "a stranger")


def memory_with(directory: Path, header: bytes) -> None:
    """Overwrite the header of the schedule's memory, as a donor could whose index names the hashes of that."""
    path = directory / snapshots.MEMORY_NAME
    offset, data = read_header(path)[0], bytearray(path.read_bytes())
    data[offset : offset + HEADER_BYTES] = header.ljust(HEADER_BYTES)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["garbage", "deep", "infinite rank", "unknown rank", "infinite offset"])
def test_snapshot_of_a_hostile_donor_is_refused_and_the_worker_lives(tmp_path: Path, kind: str) -> None:
    """Its hashes are right, whatever the files hold: the worker must not end, or it would be asked again and again."""
    worker = InnerWorker(make_plan(tiny_manifest(strategy={"codec": "int4"}, aggregation={"centered_clip": True})))
    worker.do(LoadState, "")
    site = Site("Qma", worker)
    form(site, torch.randn(worker.described.numel, generator=torch.Generator().manual_seed(0)), 0)
    commit([site], 0, 0, exchange([site], (0,), {}))
    directory = tmp_path / "1"
    worker.write_snapshot(directory)
    path = directory / snapshots.MEMORY_NAME
    index, offset = snapshots.read_index(directory), read_header(path)[0]
    good = json.loads(path.read_bytes()[offset : offset + HEADER_BYTES])
    if kind == "infinite offset":
        data = path.read_bytes()
        table = json.loads(data[8:offset])
        table[next(name for name in table if name != "__metadata__")]["data_offsets"] = [float("inf"), 5]
        text = json.dumps(table).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[offset:])
    else:
        rank = {"infinite rank": float("inf"), "unknown rank": 999}.get(kind, 0)
        told = {"garbage": b"not json", "deep": b"[" * HEADER_BYTES}.get(kind)
        memory_with(directory, told or json.dumps(good | {"lowrank_r": rank}).encode())
    republish(directory, index)
    answer = worker.ask(LoadState, str(directory))
    assert isinstance(answer, WorkerFailed) and answer.kind == "corrupt_snapshot"
    assert isinstance(worker.ask(LoadState, ""), StateReady)
