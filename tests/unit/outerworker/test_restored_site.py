"""A site that left with a contribution in flight and comes back has the bits of one that never left.

What an entry clipped or left out of the contribution stays in the error feedback: the kept work says it, or the log.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.ids import Digest, PhaseId
from dilocoxd.outer.clipping import decode_record
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece, work_path
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import ApplyResult, CopyBase, LoadState, RestoreSite, SaveSite, Settle, SiteDone
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form, gather

NAMES = ("Qma", "Qmb", "Qmc")
BACK = "Qmb"
"""The site that leaves and comes back; another one reduces."""
Changes = dict[str, dict[str, Any]]
LOW_RANK: Changes = {"strategy": {"transform": "lowrank", "lowrank_r": 4}}
INT4: Changes = {"strategy": {"codec": "int4"}}
CENTERED: Changes = {"strategy": {"codec": "int4"}, "aggregation": {"centered_clip": True}}
SIZES = {"large": 1e4, "contrary": -1.0, "ordinary": 1.0}
"""What its update is multiplied with: clipped, left out, counted whole."""


@dataclass
class Left:
    """What was saved before a round in which the contribution was in flight, and how that round went on without."""

    plan: OuterPlan
    rounds: list[bytes]
    """Results of all rounds, as the log has them."""
    stayed: Site
    feedback: Path
    work: Path

    def come_back(self) -> InnerWorker:
        """A fresh worker that has caught up with the log."""
        worker = InnerWorker(self.plan)
        worker.do(LoadState, "")
        for index, results in enumerate(self.rounds):
            worker.write(local_buffers.RESULT, results)
            worker.do(ApplyResult, index, "", 0, self.plan.schedule.start.lowrank_r)
        worker.do(CopyBase)
        return worker

    def log(self, folder: Path) -> tuple[Path, int]:
        """The results of the last round in a file, behind something else."""
        path = folder / "entry"
        path.write_bytes(b"an entry" + self.rounds[-1])
        return path, len(b"an entry")


def common(index: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(index))


def update(name: str, index: int, numel: int) -> torch.Tensor:
    own = torch.randn(numel, generator=torch.Generator().manual_seed(1000 * index + ord(name[-1])))
    return common(index, numel) + 0.5 * own


def leave(folder: Path, changes: Changes, size: float) -> Left:
    """Two rounds of three sites; in the second one leaves with its update, times `size`, in flight."""
    plan, sites = make_plan(tiny_manifest(**changes)), []
    for name in NAMES:
        worker = InnerWorker(plan)
        worker.do(LoadState, "")
        sites.append(Site(name, worker))
    stayed = next(site for site in sites if site.peer == BACK)
    rounds = []
    for index in range(2):
        for site in sites:
            factor = size if index and site is stayed else 1.0
            form(site, update(site.peer, index, plan.layout.numel) * factor, index)
        if index:
            stayed.worker.do(SaveSite, str(folder / "feedback"), index - 1)
        owned = exchange(sites, (0, 2), {})
        keep(stayed, folder / "work", PhaseId(index))
        rounds.append(stayed.worker.read(local_buffers.RESULT))
        commit(sites, index, index, owned)
        for site in sites:
            site.worker.do(CopyBase)
    return Left(plan, rounds, stayed, folder / "feedback", work_path(folder / "work", PhaseId(1)))


def keep(site: Site, folder: Path, phase: PhaseId) -> None:
    """What the daemon does before the vote."""
    described = site.worker.described
    assert described is not None
    fds = {}
    for name in (local_buffers.OUTBOX, local_buffers.RESULT, local_buffers.MEMORY):
        fds[name] = os.memfd_create(name)
        os.pwrite(fds[name], site.worker.read(name), 0)
    lengths = [sum(row) for row in described.payload_bytes]
    outbox, result = fds[local_buffers.OUTBOX], fds[local_buffers.RESULT]
    body = [Piece(outbox, sum(lengths[:-1]), lengths[-1]), Piece(result, 0, sum(lengths[:-1]))]
    ends = itertools.accumulate(described.payload_bytes[-1], initial=sum(lengths[:-1]))
    size = described.record_bytes
    body += [Piece(result, end - size, size) for end in list(ends)[1:]]
    if described.center_start:
        memory = fds[local_buffers.MEMORY]
        body.append(Piece(memory, described.center_start, os.fstat(memory).st_size - described.center_start))
    work = KeptWork(phase, int(phase), Digest(bytes(32)), len(lengths), place=NAMES.index(site.peer))
    KeptWorkStore(folder).keep(work, body)
    for fd in fds.values():
        os.close(fd)


def own_factors(left: Left) -> list[float]:
    """What the entry says of our share, by segment."""
    worker, plan = left.stayed.worker, left.plan
    found, end = [], sum(map(sum, plan.payload_bytes_at(plan.schedule.start.lowrank_r)[:-1]))
    for length in plan.payload_bytes_at(plan.schedule.start.lowrank_r)[-1]:
        end += length
        record = worker.read(local_buffers.RESULT, end - plan.record_bytes, plan.record_bytes)
        found.append(decode_record(record).factors[NAMES.index(BACK)])
    return found


def restore(worker: InnerWorker, left: Left, **where: Any) -> SiteDone:
    answer = worker.do(lambda number, *_: RestoreSite(number, str(left.feedback), PhaseId(1), **where))
    assert isinstance(answer, SiteDone)
    return answer


def assert_same(worker: InnerWorker, left: Left) -> None:
    """All that counts later, and the next contribution."""
    back = Site(BACK, worker)
    for name in (local_buffers.ANCHOR, local_buffers.MOMENTUM, local_buffers.FEEDBACK, local_buffers.OWNER_FEEDBACK):
        if any(buffer.name == name and buffer.size for buffer in worker.described.buffers):
            assert worker.read(name) == left.stayed.worker.read(name), name
    again = update(BACK, 2, left.plan.layout.numel)
    hashes = [form(site, again, 2).segment_hashes for site in (back, left.stayed)]
    assert hashes[0] == hashes[1]


CASES: dict[str, tuple[Changes, str]] = {
    **{f"int4-{size}": (INT4, size) for size in SIZES},
    "fp16": ({"strategy": {"codec": "fp16"}}, "large"),
    "topk": ({"strategy": {"codec": "topk"}}, "large"),
    "centered": (CENTERED, "large"),
    "lowrank": (LOW_RANK, "large"),
}


@pytest.mark.parametrize("name", CASES)
def test_kept_work_says_what_was_counted(tmp_path: Path, name: str) -> None:
    changes, size = CASES[name]
    left = leave(tmp_path, changes, SIZES[size])
    factors = own_factors(left)
    assert {"large": max(factors) < 1, "contrary": 0.0 in factors, "ordinary": 1.0 in factors}[size], factors
    worker = left.come_back()
    answer = restore(worker, left, kept_path=str(left.work))
    assert (answer.is_restored, answer.detail) == (True, "")
    assert_same(worker, left)


@pytest.mark.parametrize("size", ["large", "contrary"])
def test_the_log_says_what_was_counted_where_we_did_not_vote(tmp_path: Path, size: str) -> None:
    left = leave(tmp_path, INT4, SIZES[size])
    left.work.unlink()
    worker = left.come_back()
    path, offset = left.log(tmp_path)
    answer = restore(worker, left, results_path=str(path), offset=offset, place=NAMES.index(BACK))
    assert answer.is_restored
    assert_same(worker, left)


def test_what_nobody_can_say_counts_as_given_whole(tmp_path: Path) -> None:
    """As it does where a site never left, voted for nothing, and a snapshot took the place of the entry."""
    left = leave(tmp_path, INT4, 1.0)
    worker = left.come_back()
    assert restore(worker, left).is_restored
    assert_same(worker, left)


def test_without_kept_work_what_several_passes_left_is_unknown(tmp_path: Path) -> None:
    left = leave(tmp_path, LOW_RANK, 1.0)
    worker = left.come_back()
    answer = restore(worker, left)
    assert (answer.is_restored, "unknown" in answer.detail) == (False, True)
    assert not any(worker.read(local_buffers.FEEDBACK))


def test_kept_work_or_results_that_are_damaged_restore_nothing(tmp_path: Path) -> None:
    left = leave(tmp_path, INT4, 1e4)
    worker = left.come_back()
    path, offset = left.log(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    good = left.work.read_bytes()
    left.work.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
    for where in ({"kept_path": str(left.work)}, {"results_path": str(path), "offset": offset, "place": 1}):
        answer = restore(worker, left, **where)
        assert (answer.is_restored, bool(answer.detail)) == (False, True)
        assert not any(worker.read(local_buffers.FEEDBACK)), "half of it was taken out"
    left.work.write_bytes(good)
    assert restore(worker, left, kept_path=str(left.work)).is_restored
    assert_same(worker, left)


def test_where_everybody_sums_an_entry_learnt_of_later_settles_without_the_shares(tmp_path: Path) -> None:
    """What encoding the mean lost (X11) follows from shares that recovery does not bring: it is lost here."""
    plan, sites = make_plan(tiny_manifest(reduction={"reducer": "gather"}, **INT4)), []
    for name in NAMES:
        sites.append(Site(name, InnerWorker(plan)))
        sites[-1].worker.do(LoadState, "")
        form(sites[-1], update(name, 1, plan.layout.numel) * (1e4 if name == BACK else 1.0), 1)
    site = sites[NAMES.index(BACK)]
    site.worker.do(SaveSite, str(tmp_path / "feedback"), 0)
    gather(sites, {})
    keep(site, tmp_path / "work", PhaseId(1))
    results = site.worker.read(local_buffers.RESULT)
    left = Left(plan, [results], site, tmp_path / "feedback", work_path(tmp_path / "work", PhaseId(1)))
    site.worker.do(Settle, 1, 0, True, (), NAMES.index(BACK))
    worker = left.come_back()
    assert restore(worker, left, kept_path=str(left.work)).is_restored
    assert (
        worker.read(local_buffers.FEEDBACK) == site.worker.read(local_buffers.FEEDBACK) != bytes(4 * plan.layout.numel)
    )
