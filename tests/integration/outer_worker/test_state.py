"""Snapshots, the site file and the life of the process: atomic, verified, and gone when the daemon is gone."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store import snapshots
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    CopyBase,
    FormContribution,
    LoadState,
    OpenState,
    RestoreSite,
    SaveSite,
    Settle,
    StateReady,
    WriteSnapshot,
)
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
from tests.harness.outer_worker.forks import OUTER, Forks
from tests.harness.outer_worker.swarm import Site, commit, exchange, foreign_payload, form, take_anchor

pytestmark = pytest.mark.processes

GONE_TIMEOUT_S = 30.0


@pytest.fixture
def site(tmp_path: Path, forks: Forks) -> Iterator[Site]:
    """A site that has committed two rounds."""
    with OuterDaemon(tmp_path / "site", tiny_manifest(), forks.outer) as worker:
        worker.start()
        worker.do(OpenState)
        worker.do(LoadState, "")
        site = Site("Qma", worker)
        for index in range(2):
            one_round(site, index)
        yield site


def random_vector(worker: OuterDaemon, seed: int) -> torch.Tensor:
    assert worker.described is not None
    return torch.randn(worker.described.numel, generator=torch.Generator().manual_seed(seed))


def one_round(site: Site, index: int) -> StateReady:
    """A round with another site whose payload we make up, and in which we own everything."""
    plan = make_plan(tiny_manifest())
    take_anchor([site])
    form(site, random_vector(site.worker, index), index)
    site.worker.write(local_buffers.INBOX, foreign_payload(plan, index), plan.payload_total)
    shares = (local.Share(-1, 1000), local.Share(1, 700))
    for segment in range(len(plan.segments)):
        site.worker.do(local.Reduce, 0, segment, shares, 0)
    owned = tuple(local.OwnedSegment(0, segment, shares) for segment in range(len(plan.segments)))
    return commit([site], index, index, {site.peer: owned})[0]


def state_of(site: Site) -> StateReady:
    answer = site.worker.do(OpenState)
    assert isinstance(answer, StateReady)
    return answer


def same_state(left: StateReady, right: StateReady) -> bool:
    return (left.is_loaded, left.round, left.anchor_sha256, left.state_digest) == (
        right.is_loaded,
        right.round,
        right.anchor_sha256,
        right.state_digest,
    )


def test_snapshot_brings_the_same_state_to_another_site(tmp_path: Path, site: Site, forks: Forks) -> None:
    written = site.worker.do(WriteSnapshot, str(tmp_path / "snapshots" / "2"))
    assert (written.round, written.total_bytes) == (2, snapshots.verify(tmp_path / "snapshots" / "2").total_bytes)
    with OuterDaemon(tmp_path / "other", tiny_manifest(), forks.outer) as other:
        other.start()
        loaded = other.do(LoadState, str(tmp_path / "snapshots" / "2"))
        assert same_state(loaded, state_of(site))
        for name in (local_buffers.ANCHOR, local_buffers.MOMENTUM):
            assert other.read(name) == site.worker.read(name)
        result = one_round(site, 2)
        other.write(local_buffers.RESULT, site.worker.read(local_buffers.RESULT))
        assert other.do(ApplyResult, 2, "", 0, 0).state_digest == result.state_digest


def test_the_next_snapshot_may_be_asked_for_at_once(tmp_path: Path, site: Site) -> None:
    for number in range(20):
        site.worker.do(WriteSnapshot, str(tmp_path / str(number % 3)))
    assert snapshots.list_rounds(tmp_path) == [0, 1, 2]


def test_snapshot_is_readable_by_the_safetensors_library(tmp_path: Path, site: Site) -> None:
    directory = tmp_path / "2"
    site.worker.do(WriteSnapshot, str(directory))
    plan = make_plan(tiny_manifest())
    anchor, tensors = site.worker.floats(local_buffers.ANCHOR), load_file(directory / snapshots.ANCHOR_NAME)
    assert set(tensors) == {param.name for param in plan.layout.params}
    for param in plan.layout.params:
        span = plan.layout.span(param.name)
        assert torch.equal(tensors[param.name], anchor[span.start : span.stop].view(param.shape))
    momentum = load_file(directory / snapshots.MOMENTUM_NAME)
    assert torch.equal(
        torch.cat([momentum[param.name].flatten() for param in plan.layout.params]),
        site.worker.floats(local_buffers.MOMENTUM),
    )


def test_updates_go_on_while_a_snapshot_is_written(tmp_path: Path, site: Site) -> None:
    before = state_of(site)
    worker = site.worker
    request = worker.number()
    worker.send(WriteSnapshot(request, str(tmp_path / "2")))
    after = one_round(site, 2)
    written = worker.answer(request)
    assert written.round == 2
    index = snapshots.verify(tmp_path / "2")
    assert index.state_digest == before.state_digest.hex() != after.state_digest.hex()
    assert same_state(worker.do(LoadState, str(tmp_path / "2")), before)


@pytest.mark.parametrize("name", [snapshots.ANCHOR_NAME, snapshots.MOMENTUM_NAME, snapshots.INDEX_NAME])
def test_corrupt_snapshot_is_refused_and_changes_nothing(tmp_path: Path, site: Site, name: str) -> None:
    directory = tmp_path / "2"
    site.worker.do(WriteSnapshot, str(directory))
    one_round(site, 2)
    before = state_of(site)
    good = (directory / name).read_bytes()
    for position in (0, len(good) // 2, len(good) - 1):
        (directory / name).write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        answer = site.worker.ask(LoadState, str(directory))
        assert isinstance(answer, WorkerFailed)
        assert answer.kind == "corrupt_snapshot"
        assert name in answer.detail
        assert same_state(state_of(site), before)
    (directory / name).unlink()
    assert site.worker.ask(LoadState, str(directory)).kind == "corrupt_snapshot"
    assert site.worker.ask(LoadState, str(tmp_path / "nowhere")).kind == "corrupt_snapshot"
    assert same_state(state_of(site), before)


def test_snapshot_of_another_run_is_refused(tmp_path: Path, site: Site, forks: Forks) -> None:
    site.worker.do(WriteSnapshot, str(tmp_path / "2"))
    with OuterDaemon(tmp_path / "other", tiny_manifest(seeds={"model": 5}), forks.outer) as other:
        other.start()
        answer = other.ask(LoadState, str(tmp_path / "2"))
        assert (answer.kind, "of run test-" in answer.detail) == ("corrupt_snapshot", True)
        assert not other.do(OpenState).is_loaded


def test_full_disk_leaves_nothing_half_written(tmp_path: Path, site: Site) -> None:
    """A limit on file size hits the worker in the middle of its files, as a full disk does."""
    worker = site.worker
    worker.do(SaveSite, str(tmp_path / "feedback.safetensors"), 1)
    saved = (tmp_path / "feedback.safetensors").read_bytes()
    before = state_of(site)
    assert worker.process is not None
    for limit in (100, 20_000):
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        answer = worker.ask(WriteSnapshot, str(tmp_path / "snapshots" / "2"))
        assert (type(answer), answer.kind) == (WorkerFailed, "disk_full"), answer
        answer = worker.ask(SaveSite, str(tmp_path / "feedback.safetensors"), 1)
        assert (type(answer), answer.kind) == (WorkerFailed, "disk_full"), answer
    assert list((tmp_path / "snapshots").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["feedback.safetensors", "site", "snapshots"]
    assert (tmp_path / "feedback.safetensors").read_bytes() == saved
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert same_state(state_of(site), before)
    worker.do(WriteSnapshot, str(tmp_path / "snapshots" / "2"))
    assert snapshots.verify(tmp_path / "snapshots" / "2").state_digest == before.state_digest.hex()


def test_killed_while_writing_a_snapshot_leaves_no_snapshot(tmp_path: Path, site: Site) -> None:
    worker = site.worker
    root = tmp_path / "snapshots"
    worker.send(WriteSnapshot(worker.number(), str(root / "2")))
    worker.kill()
    assert snapshots.list_rounds(root) in ([], [2])
    for number in snapshots.list_rounds(root):
        snapshots.verify(root / str(number))
    worker.start()
    before = state_of(site)
    assert before.round == 2
    worker.do(WriteSnapshot, str(root / "2"))
    assert snapshots.verify(root / "2").state_digest == before.state_digest.hex()
    assert [path.name for path in root.iterdir()] == ["2"]


def feedback_of(worker: OuterDaemon) -> tuple[bytes, bytes]:
    return worker.read(local_buffers.FEEDBACK), worker.read(local_buffers.OWNER_FEEDBACK)


def test_site_file_restores_the_error_feedback_of_its_phase_only(tmp_path: Path, site: Site, forks: Forks) -> None:
    path = tmp_path / "feedback.safetensors"
    site.worker.do(SaveSite, str(path), 1)
    kept = feedback_of(site.worker)
    assert any(kept[0])
    assert any(kept[1])
    zero = bytes(len(kept[0])), bytes(len(kept[1]))
    with OuterDaemon(tmp_path / "again", tiny_manifest(), forks.outer) as worker:
        worker.start()
        worker.do(LoadState, "")
        assert worker.do(RestoreSite, str(path), 1).is_restored
        assert feedback_of(worker) == kept
        answer = worker.do(RestoreSite, str(path), 2)
        assert (answer.is_restored, "phase 1, wanted is 2" in answer.detail) == (False, True)
        assert feedback_of(worker) == zero
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        answer = worker.do(RestoreSite, str(path), 1)
        assert (answer.is_restored, "damaged" in answer.detail) == (False, True)
        assert feedback_of(worker) == zero
        path.write_bytes(good[: len(good) // 2])
        assert not worker.do(RestoreSite, str(path), 1).is_restored
        assert worker.do(RestoreSite, str(tmp_path / "nowhere"), 1).detail == "no file"
        path.write_bytes(good)
        assert worker.do(RestoreSite, str(path), 1).is_restored


@pytest.mark.parametrize("is_included", [True, False])
def test_a_contribution_in_flight_is_saved_with_both_fates(
    tmp_path: Path, site: Site, forks: Forks, is_included: bool
) -> None:
    """The chain names phase 2 or it does not: error feedback after a power loss is what Settle would have left."""
    path = tmp_path / "feedback.safetensors"
    take_anchor([site])
    form(site, random_vector(site.worker, 2), 2)
    site.worker.do(SaveSite, str(path), 1)
    site.worker.do(Settle, 2, 2, is_included, ())
    with OuterDaemon(tmp_path / "again", tiny_manifest(), forks.outer) as worker:
        worker.start()
        worker.do(LoadState, "")
        assert worker.do(RestoreSite, str(path), 2 if is_included else 1).is_restored
        assert feedback_of(worker) == feedback_of(site.worker)


def test_stop_ends_with_exit_code_zero_after_the_snapshot(tmp_path: Path, site: Site) -> None:
    site.worker.send(WriteSnapshot(site.worker.number(), str(tmp_path / "2")))
    assert site.worker.stop() == 0
    assert snapshots.verify(tmp_path / "2").round == 2


def test_repeated_requests_have_no_second_effect(site: Site) -> None:
    worker = site.worker
    take_anchor([site])
    first = form(site, random_vector(worker, 2), 2)
    kept = feedback_of(worker)
    second = worker.do(FormContribution, 2, 0)
    assert (second.segment_hashes, second.norm, second.residual_norm) == (
        first.segment_hashes,
        first.norm,
        first.residual_norm,
    )
    assert feedback_of(worker) == kept
    owned = exchange([site], (0,), {})
    answers = commit([site], 2, 2, owned)
    kept = feedback_of(worker)
    worker.do(Settle, 2, 2, True, owned[site.peer])
    assert feedback_of(worker) == kept
    assert same_state(worker.do(ApplyResult, 2, "", 0, 0), answers[0])
    assert worker.ask(FormContribution, 2, 0).kind == "bad_request"


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # gone before it was opened, or before it was read
            return
        if status.rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still alive after {GONE_TIMEOUT_S} s")


def test_end_of_file_on_the_socket_ends_the_worker(tmp_path: Path, forks: Forks) -> None:
    with OuterDaemon(tmp_path / "site", tiny_manifest(), forks.outer) as worker:
        worker.start()
        worker.do(LoadState, "")
        worker.hang_up()
        assert worker.process is not None
        assert worker.process.wait(GONE_TIMEOUT_S) == 1


PARENT = """
import sys
from pathlib import Path
from tests.harness.outer_worker.forks import OUTER, Forks
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
with Forks(OUTER) as forks:
    daemon = OuterDaemon(Path(sys.argv[1]), tiny_manifest(), forks.outer)
    daemon.start()
    print(daemon.process.pid, forks.pid, flush=True)
    sys.stdin.read()
"""


def test_killed_daemon_takes_its_worker_with_it(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "site")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(GONE_TIMEOUT_S)
    parent.stdin.close()
    parent.stdout.close()
    for pid in pids:
        wait_gone(pid)


def test_bad_manifest_is_one_sentence_and_exit_78(tmp_path: Path, forks: Forks) -> None:
    (tmp_path / "run.toml").write_text("[run]\nname = 'x'\n")
    environment = {"DILOCOXD_RUN_DIR": str(tmp_path), "DILOCOXD_SOCKET": str(tmp_path / "none")}
    with (tmp_path / "log").open("wb") as log:
        worker = forks.start(OUTER, environment, output=log.fileno())
    assert worker.wait() == 78
    assert len((tmp_path / "log").read_text().strip().splitlines()) == 1


def test_unused_memory_is_given_back(site: Site) -> None:
    """INBOX pages of reduced shares, OUTBOX after settling, PHASE until the next base: nothing idle is kept."""
    worker = site.worker
    assert worker.described is not None
    total: Any = sum(worker.described.payload_bytes[0])
    take_anchor([site])
    form(site, random_vector(worker, 2), 2)
    assert worker.allocated(local_buffers.PHASE) == 0
    shares = (local.Share(-1, 1000), local.Share(1, 1000))
    worker.write(local_buffers.INBOX, worker.read(local_buffers.OUTBOX), total)
    owned = []
    for segment in range(len(worker.described.payload_bytes[0])):
        worker.do(local.Reduce, 0, segment, shares, 0)
        owned.append(local.OwnedSegment(0, segment, shares))
    worker.do(Settle, 2, 2, True, tuple(owned))
    assert worker.allocated(local_buffers.OUTBOX) == 0
    worker.do(ApplyResult, 2, "", 0, 0)
    worker.do(CopyBase)
    assert worker.read(local_buffers.PHASE) == worker.read(local_buffers.ANCHOR)
