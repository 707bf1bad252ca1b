"""The outer workers compute what the single-process engine computes, bit for bit, for every kind of transform."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from dilocoxd.outer.rounding import age_factor
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import ApplyResult, CopyBase, FormContribution, LoadState, PreparePass, Settle
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form
from tests.harness.recorded.whole_run import ScheduledEngine

ROUNDS = 7
NAMES = ("Qma", "Qmb", "Qmc")
TOKENS = {"Qma": 100, "Qmb": 250, "Qmc": 70}
LIES = (1, 5)
"""Rounds in which a site sends a million times too much: one of all three sites, one after a round without one."""
OWNERS = ((0,), (0, 1), (1, 0), (2, 1, 0), (2,), (0, 1, 2), (0,))
"""By round: which of the sites that take part, in the order of their names, reduce the segments in turn."""
EXCLUDED = {2: frozenset({"Qmb"}), 6: frozenset({"Qma", "Qmb"})}
LOW_RANK = {"transform": "lowrank", "lowrank_r": 8, "codec": "int4"}
Changes = dict[str, dict[str, Any]]


def make_sites(changes: Changes) -> list[Site]:
    sites = []
    for name in NAMES:
        worker = InnerWorker(make_plan(tiny_manifest(**changes)))
        worker.do(LoadState, "")
        sites.append(Site(name, worker))
    return sites


def update(name: str, index: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * index + ord(name[-1])))


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": {"codec": "fp32"}},
        {"strategy": {"codec": "int4"}},
        {"strategy": {"codec": "int4", "participation_rounds": 0}},
        {"strategy": {"codec": "int4"}, "aggregation": {"norm_clip": False}},
        {"strategy": {"codec": "int4"}, "aggregation": {"centered_clip": True}},
        {"strategy": {"codec": "int8", "error_feedback": "paper"}},
        {"strategy": LOW_RANK},
        {"strategy": {"transform": "mask", "mask_keep_one_in": 8, "codec": "int8"}},
        {"strategy": LOW_RANK, "schedule": {"kind": "adaptive", "window": 2, "energy_left": 0.5}},
        {"strategy": {"delay": "streaming", "fragments": 3, "codec": "e3m0", "error_feedback": "none"}},
    ],
    ids=[
        "fp32",
        "int4",
        "int4-whole-steps",
        "unclipped",
        "centered",
        "int8-paper",
        "lowrank",
        "mask",
        "adaptive",
        "streaming",
    ],
)
@pytest.mark.parametrize("liar", ["", "Qmb"])
def test_workers_and_engine_agree(changes: Changes, liar: str) -> None:
    """Rounds of everybody, except one without one site, one without two, and one to which a site comes late. What
    `liar` sends is a million times too large in two of the rounds."""
    sites = make_sites(changes)
    plan = make_plan(tiny_manifest(**changes))
    engine = ScheduledEngine(plan, sites[0].worker.floats(local_buffers.ANCHOR), NAMES)
    nothing = torch.zeros(plan.layout.numel)
    for index in range(ROUNDS):
        updates = {name: update(name, index, plan.layout.numel) for name in NAMES}
        if liar and index in LIES:
            updates[liar].mul_(1e6)
        excluded = EXCLUDED.get(index, frozenset())
        for site in sites:
            form(site, updates[site.peer], index)
        included = [site for site in sites if site.peer not in excluded]
        missing = engine.engine.missing(len(included))
        owned = exchange(included, OWNERS[index], TOKENS, {"Qmc": 2} if index == 3 else {}, missing)
        for site in sites:
            if site.peer in excluded:
                site.worker.write(local_buffers.RESULT, included[0].worker.read(local_buffers.RESULT))
                site.worker.do(Settle, index, index, False, ())
                site.worker.do(ApplyResult, index, "", 0, engine.state.lowrank_r)
        ready = commit(included, index, index, owned)[0]
        for site in sites:
            site.worker.do(CopyBase)
        late = {"Qmc": age_factor(2, plan.age_decay, plan.age_expected)} if index == 3 else {}
        owners = [included[OWNERS[index][s.index % len(OWNERS[index])]].peer for s in plan.segments]
        engine.commit(engine.engine.offer(updates, TOKENS, factors=late), excluded, owners)
        for site in sites:
            assert torch.equal(site.worker.floats(local_buffers.ANCHOR), engine.engine.anchor), (index, site.peer)
            assert torch.equal(site.worker.floats(local_buffers.FEEDBACK), engine.engine.feedback[site.peer]), (
                index,
                site.peer,
            )
            owed = engine.engine.residuals_of.get(site.peer, nothing)
            if not plan.has_owner_feedback:
                assert not owed.any()
                continue
            assert torch.equal(site.worker.floats(local_buffers.OWNER_FEEDBACK), owed), (index, site.peer)
        assert ready.state_digest == engine.digest()
        found = (ready.lowrank_r, ready.inner_steps, ready.next_lowrank_r, ready.next_inner_steps, ready.shared_steps)
        assert found == dataclasses.astuple(engine.state)[:5]
    clipped = [r for records in engine.engine.records.values() for r in records if not r.is_whole]
    assert clipped or not (liar and plan.clip_kappa), "a liar is held back"
    assert plan.clip_kappa or not clipped
    if "schedule" in changes:
        assert engine.state.lowrank_r < 8, "random updates have no rank that half of the energy needs in full"
        assert engine.state.inner_steps < 10


def test_two_passes_are_prepared_in_order_and_hostile_factors_are_named() -> None:
    (site, *_) = make_sites({"strategy": LOW_RANK})
    worker = site.worker
    assert worker.described is not None
    assert len(worker.described.payload_bytes) == 3
    assert worker.ask(PreparePass, 1, 8).kind == "bad_request"
    form(site, update(site.peer, 0, worker.described.numel), 0)
    first = sum(map(sum, worker.described.payload_bytes[:2]))
    worker.write(local_buffers.RESULT, b"\xff" * first)
    answer = worker.ask(PreparePass, 2, 8)
    assert isinstance(answer, WorkerFailed)
    assert answer.kind == "bad_payload"
    owned = exchange([site], (0,), {})
    worker.do(PreparePass, 3, 8)
    commit([site], 0, 0, {site.peer: owned[site.peer]})
    assert worker.ask(FormContribution, 0, 0).kind == "bad_request"
