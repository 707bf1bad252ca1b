"""ReturnWork through a real outer worker: what a fork drops is in the feedback again, whatever kills the worker."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.ids import Digest, PhaseId
from dilocoxd.outerworker.journal import CRASH_VARIABLE
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece, work_path
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import LoadState, OpenState, ReturnWork, Settle, WorkReturned
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon, WorkerDied, tiny_manifest
from tests.harness.outer_worker.forks import Forks
from tests.harness.outer_worker.swarm import Site, commit, exchange, form

pytestmark = pytest.mark.processes
PHASE = PhaseId(3)


@contextlib.contextmanager
def pair(directory: Path, forks: Forks, *, size: float = 1.0, **strategy: Any) -> Iterator[list[Site]]:
    """Two sites with a contribution each, not yet exchanged; that of site b is `size` times as large."""
    centered = {"aggregation": {"centered_clip": True}} if strategy.pop("is_centered", False) else {}
    manifest = tiny_manifest(strategy=strategy, **centered)
    with contextlib.ExitStack() as stack:
        sites = []
        for seed, name in enumerate("ab"):
            worker = stack.enter_context(OuterDaemon(directory / name, manifest, forks.outer))
            worker.start()
            worker.do(OpenState)
            worker.do(LoadState, "")
            numel = worker.floats(local_buffers.ANCHOR).numel()
            sites.append(Site(f"Qm{name}", worker))
            update = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * (size if seed else 1.0)
            form(sites[-1], update, PHASE)
        yield sites


def keep(site: Site, directory: Path, place: int = 0) -> Path:
    """What the daemon does before the vote."""
    described = site.worker.described
    assert described is not None
    lengths = [sum(row) for row in described.payload_bytes]
    last = Piece(site.worker.fd(local_buffers.OUTBOX), sum(lengths[:-1]), lengths[-1])
    body = [last, Piece(site.worker.fd(local_buffers.RESULT), 0, sum(lengths[:-1]))]
    ends = itertools.accumulate(described.payload_bytes[-1], initial=sum(lengths[:-1]))
    size = described.record_bytes
    body += [Piece(site.worker.fd(local_buffers.RESULT), end - size, size) for end in list(ends)[1:]]
    if described.center_start:
        (total,) = (buffer.size for buffer in described.buffers if buffer.name == local_buffers.MEMORY)
        start = described.center_start
        body.append(Piece(site.worker.fd(local_buffers.MEMORY), start, total - start))
    KeptWorkStore(directory).keep(KeptWork(PHASE, 0, Digest(bytes(32)), len(lengths), place=place), body)
    return work_path(directory, PHASE)


CLIPPED = (
    {"codec": "int4"},
    {"codec": "int4", "is_centered": True},
    {"codec": "topk"},
    {"transform": "lowrank", "lowrank_r": 4},
)


@pytest.mark.parametrize("strategy", CLIPPED, ids=["int4", "centered", "topk", "lowrank"])
def test_what_was_clipped_comes_back_as_it_was_counted(tmp_path: Path, forks: Forks, strategy: dict[str, Any]) -> None:
    with pair(tmp_path, forks, size=1e4, **strategy) as sites:
        worker = sites[1].worker
        owned = exchange(sites, (0, 1), {})
        offered = worker.floats(local_buffers.FEEDBACK)
        path = keep(sites[1], tmp_path / "work", place=1)
        commit(sites, 0, PHASE, owned)
        rest = worker.floats(local_buffers.FEEDBACK)
        assert torch.linalg.norm(rest) > 0.99 * torch.linalg.norm(offered), "nearly all of it was cut off"
        assert not torch.equal(rest, offered)
        worker.do(ReturnWork, PHASE, str(path), False, 1)
        assert (worker.floats(local_buffers.FEEDBACK) - offered).abs().max() <= 2.0**-22 * offered.abs().max()


@pytest.mark.parametrize("strategy", CLIPPED, ids=["int4", "centered", "topk", "lowrank"])
def test_kept_work_settles_what_results_would_have(tmp_path: Path, forks: Forks, strategy: dict[str, Any]) -> None:
    """A snapshot took the place of the entry's results: the books are the same to the bit."""
    found = []
    for way in ("results", "kept"):
        with pair(tmp_path / way, forks, size=1e4, **strategy) as sites:
            worker = sites[1].worker
            exchange(sites, (0, 0), {})
            path = keep(sites[1], tmp_path / way / "work", place=1)
            told = ("", 0, 0, str(path)) if way == "kept" else ("", 0, 0, "")
            worker.do(Settle, PHASE, 0, True, (), 0 if way == "kept" else 1, *told)
            found.append(worker.read(local_buffers.FEEDBACK))
    assert found[0] == found[1]


@pytest.mark.parametrize("strategy", [{"codec": "fp16"}, {"codec": "int4"}, {"transform": "lowrank", "lowrank_r": 4}])
def test_feedback_is_as_if_the_contribution_had_been_left_out(
    tmp_path: Path, forks: Forks, strategy: dict[str, Any]
) -> None:
    with pair(tmp_path, forks, **strategy) as sites:
        worker = sites[0].worker
        owned = exchange(sites, (0, 1), {})
        offered = worker.floats(local_buffers.FEEDBACK)
        path = keep(sites[0], tmp_path / "work")
        commit(sites, 0, PHASE, owned)
        rest = worker.floats(local_buffers.FEEDBACK)
        assert not torch.equal(rest, offered)
        worker.do(ReturnWork, PHASE, str(path), False, 1)
        # One rounding of d - own, one of the sum (outer/feedback.py says when both are exact).
        assert (worker.floats(local_buffers.FEEDBACK) - offered).abs().max() <= 2.0**-22 * offered.abs().max()
        if strategy.get("codec") == "fp16":
            assert torch.equal(worker.floats(local_buffers.FEEDBACK), offered)
        worker.do(ReturnWork, PHASE, str(path), True, 2)
        assert (worker.floats(local_buffers.FEEDBACK) - rest).abs().max() <= 2.0**-22 * offered.abs().max()


def test_killed_at_every_journal_write_it_is_done_exactly_once(tmp_path: Path, forks: Forks) -> None:
    with pair(tmp_path, forks, codec="int4") as sites:
        worker = sites[0].worker
        owned = exchange(sites, (0, 1), {})
        path = keep(sites[0], tmp_path / "work")
        commit(sites, 0, PHASE, owned)
        before = worker.read(local_buffers.FEEDBACK)
        worker.do(ReturnWork, PHASE, str(path), False, 1)
        wanted = worker.read(local_buffers.FEEDBACK)
        kills = 0
        for number in range(1, 1000):
            worker.write(local_buffers.FEEDBACK, before)
            worker.kill()
            worker.start(**{CRASH_VARIABLE: f"{('before', 'after')[number % 2]}:{number}"})
            worker.do(OpenState)
            request = ReturnWork(worker.number(), PHASE, str(path), False, number + 1)
            try:
                worker.send(request)
                worker.answer(request.request)
                break
            except WorkerDied:
                kills += 1
            worker.kill()
            worker.start()
            worker.do(OpenState)
            for _ in range(2):
                request = dataclasses.replace(request, request=worker.number())  # the daemon counts anew as well
                worker.send(request)
                assert isinstance(worker.answer(request.request), WorkReturned)
            assert worker.read(local_buffers.FEEDBACK) == wanted
        assert kills > 5


def test_damaged_or_missing_work_changes_nothing(tmp_path: Path, forks: Forks) -> None:
    with pair(tmp_path, forks, codec="int4") as sites:
        worker = sites[0].worker
        path = keep(sites[0], tmp_path / "work")
        good = path.read_bytes()
        before = worker.read(local_buffers.FEEDBACK)
        for data in (b"", good[:-1], good[:100] + bytes([good[100] ^ 1]) + good[101:], good[:64]):
            path.write_bytes(data)
            answer = worker.ask(ReturnWork, PHASE, str(path), False, 1)
            assert isinstance(answer, WorkerFailed) and answer.kind == "store", answer
        path.unlink()
        assert isinstance(worker.ask(ReturnWork, PHASE, str(path), False, 1), WorkerFailed)
        assert worker.read(local_buffers.FEEDBACK) == before
