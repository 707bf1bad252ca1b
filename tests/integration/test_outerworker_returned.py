"""ReturnWork through a real outer worker: what a fork drops is in the feedback again, whatever kills the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.ids import Digest, PhaseId
from dilocoxd.outerworker.journal import CRASH_VARIABLE
from dilocoxd.store.own_work import KeptWork, OwnWork, Piece, work_path
from dilocoxd.wire import local
from dilocoxd.wire.local import LoadState, OpenState, ReturnWork, WorkerFailed, WorkReturned
from tests.harness.outer_daemon import OuterDaemon, WorkerDied, tiny_manifest
from tests.harness.outer_swarm import Site, commit, exchange, form
from tests.harness.zygote import Zygote

pytestmark = pytest.mark.processes
PHASE = PhaseId(3)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@contextlib.contextmanager
def pair(directory: Path, zygote: Zygote, **strategy: Any) -> Iterator[list[Site]]:
    """Two sites with a contribution each, exchanged and not yet settled; what site a gave is kept."""
    manifest = tiny_manifest(strategy=strategy)
    with contextlib.ExitStack() as stack:
        sites = []
        for seed, name in enumerate("ab"):
            worker = stack.enter_context(OuterDaemon(directory / name, manifest, zygote.spawn))
            worker.start()
            worker.do(OpenState)
            worker.do(LoadState, "")
            numel = worker.floats(local.ANCHOR).numel()
            sites.append(Site(f"Qm{name}", worker))
            form(sites[-1], torch.randn(numel, generator=torch.Generator().manual_seed(seed)), PHASE)
        yield sites


def keep(site: Site, directory: Path) -> Path:
    """What the daemon does before the vote."""
    assert site.worker.described is not None
    lengths = [sum(row) for row in site.worker.described.payload_bytes]
    last = Piece(site.worker.fd(local.OUTBOX), sum(lengths[:-1]), lengths[-1])
    body = [last, Piece(site.worker.fd(local.RESULT), 0, sum(lengths[:-1]))]
    OwnWork(directory).keep(KeptWork(PHASE, 0, Digest(bytes(32)), len(lengths)), body)
    return work_path(directory, PHASE)


@pytest.mark.parametrize("strategy", [{"codec": "fp16"}, {"codec": "int4"}, {"transform": "lowrank", "lowrank_r": 4}])
def test_feedback_is_as_if_the_contribution_had_been_left_out(
    tmp_path: Path, zygote: Zygote, strategy: dict[str, Any]
) -> None:
    with pair(tmp_path, zygote, **strategy) as sites:
        worker = sites[0].worker
        owned = exchange(sites, (0, 1), {})
        offered = worker.floats(local.FEEDBACK)
        path = keep(sites[0], tmp_path / "work")
        commit(sites, 0, PHASE, owned)
        rest = worker.floats(local.FEEDBACK)
        assert not torch.equal(rest, offered)
        worker.do(ReturnWork, PHASE, str(path), False)
        # One rounding of d - own, one of the sum (outer/feedback.py says when both are exact).
        assert (worker.floats(local.FEEDBACK) - offered).abs().max() <= 2.0**-22 * offered.abs().max()
        if strategy.get("codec") == "fp16":
            assert torch.equal(worker.floats(local.FEEDBACK), offered)
        worker.do(ReturnWork, PHASE, str(path), True)
        assert (worker.floats(local.FEEDBACK) - rest).abs().max() <= 2.0**-22 * offered.abs().max()


def test_killed_at_every_journal_write_it_is_done_exactly_once(tmp_path: Path, zygote: Zygote) -> None:
    with pair(tmp_path, zygote, codec="int4") as sites:
        worker = sites[0].worker
        owned = exchange(sites, (0, 1), {})
        path = keep(sites[0], tmp_path / "work")
        commit(sites, 0, PHASE, owned)
        before = worker.read(local.FEEDBACK)
        worker.do(ReturnWork, PHASE, str(path), False)
        wanted = worker.read(local.FEEDBACK)
        kills = 0
        for number in range(1, 1000):
            worker.write(local.FEEDBACK, before)
            worker.kill()
            worker.start(**{CRASH_VARIABLE: f"{('before', 'after')[number % 2]}:{number}"})
            worker.do(OpenState)
            request = ReturnWork(worker.number(), PHASE, str(path), False)
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
                worker.send(request)
                assert isinstance(worker.answer(request.request), WorkReturned)
            assert worker.read(local.FEEDBACK) == wanted
        assert kills > 5


def test_damaged_or_missing_work_changes_nothing(tmp_path: Path, zygote: Zygote) -> None:
    with pair(tmp_path, zygote, codec="int4") as sites:
        worker = sites[0].worker
        path = keep(sites[0], tmp_path / "work")
        good = path.read_bytes()
        before = worker.read(local.FEEDBACK)
        for data in (b"", good[:-1], good[:100] + bytes([good[100] ^ 1]) + good[101:], good[:64]):
            path.write_bytes(data)
            answer = worker.ask(ReturnWork, PHASE, str(path), False)
            assert isinstance(answer, WorkerFailed) and answer.kind == "store", answer
        path.unlink()
        assert isinstance(worker.ask(ReturnWork, PHASE, str(path), False), WorkerFailed)
        assert worker.read(local.FEEDBACK) == before
