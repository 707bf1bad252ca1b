"""The outer workers compute what the single-process engine computes, bit for bit, for every kind of transform."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import Identity, Transform
from dilocoxd.outer.engine import Engine, Recipe
from dilocoxd.outer.rounding import age_factor
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire import local
from dilocoxd.wire.layout import Layout
from dilocoxd.wire.local import ApplyEntry, CopyBase, FormContribution, LoadState, PreparePass, Settle, WorkerFailed
from tests.harness.inner_worker import InnerWorker
from tests.harness.outer_daemon import tiny_manifest
from tests.harness.outer_swarm import Site, commit, exchange, form

ROUNDS = 5
NAMES = ("Qma", "Qmb", "Qmc")
TOKENS = {"Qma": 100, "Qmb": 250, "Qmc": 70}
TransformMaker = Callable[[Layout], Transform]


def identity(codec: str) -> TransformMaker:
    return lambda layout: Identity(layout, codec_from_name(codec))


def low_rank(layout: Layout) -> Transform:
    return LowRank(layout, 4, codec_from_name("int4"))


def make_sites(maker: TransformMaker, mode: str) -> list[Site]:
    plan = make_plan(tiny_manifest(strategy={"error_feedback": mode}))
    sites = []
    for name in NAMES:
        worker = InnerWorker(dataclasses.replace(plan, transform=maker(plan.layout)))
        worker.do(LoadState, "")
        sites.append(Site(name, worker))
    return sites


def update(name: str, index: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * index + ord(name[-1])))


@pytest.mark.parametrize(
    ("maker", "mode"),
    [(identity("fp32"), "local"), (identity("int4"), "local"), (identity("int8"), "paper"), (low_rank, "local")],
    ids=["fp32", "int4", "int8-paper", "lowrank"],
)
def test_workers_and_engine_agree(maker: TransformMaker, mode: str) -> None:
    """Rounds in which everybody takes part, except one that leaves out a site and one to which a site comes late."""
    sites = make_sites(maker, mode)
    plan = make_plan(tiny_manifest(strategy={"error_feedback": mode}))
    anchor = sites[0].worker.floats(local.ANCHOR)
    engine = Engine.start(Recipe(maker(plan.layout), plan.optimizer, plan.feedback), anchor, NAMES)
    for index in range(ROUNDS):
        updates = {name: update(name, index, plan.layout.numel) for name in NAMES}
        excluded = frozenset({"Qmb"}) if index == 2 else frozenset()
        for site in sites:
            form(site, updates[site.peer], index)
        included = [site for site in sites if site.peer not in excluded]
        # The owner of a segment stays the same, as the engine has one residual per segment.
        owned = exchange(included, (0,), TOKENS, {"Qmc": 2} if index == 3 else {})
        for site in sites:
            if site.peer in excluded:
                site.worker.write(local.RESULT, included[0].worker.read(local.RESULT))
                site.worker.do(Settle, index, index, False, ())
                site.worker.do(ApplyEntry, index, "", 0, 0)
        commit(included, index, index, owned)
        for site in sites:
            site.worker.do(CopyBase)
        late = {"Qmc": age_factor(2, plan.age_decay, plan.age_expected)} if index == 3 else {}
        engine.commit(engine.offer(updates, TOKENS, factors=late), excluded)
        for site in sites:
            assert torch.equal(site.worker.floats(local.ANCHOR), engine.anchor), (index, site.peer)
            assert torch.equal(site.worker.floats(local.FEEDBACK), engine.feedback[site.peer]), (index, site.peer)
        assert torch.equal(sites[0].worker.floats(local.OWNER_FEEDBACK), engine.owner_residual), index


def test_two_passes_are_prepared_in_order_and_hostile_factors_are_named() -> None:
    (site, *_) = make_sites(low_rank, "local")
    worker = site.worker
    assert worker.described is not None
    assert len(worker.described.payload_bytes) == 2
    assert worker.ask(PreparePass, 1, 0).kind == "bad_request"
    form(site, update(site.peer, 0, worker.described.numel), 0)
    first = sum(worker.described.payload_bytes[0])
    worker.write(local.RESULT, b"\xff" * first)
    answer = worker.ask(PreparePass, 1, 0)
    assert isinstance(answer, WorkerFailed)
    assert answer.kind == "bad_payload"
    owned = exchange([site], (0,), {})
    worker.do(PreparePass, 2, 0)
    commit([site], 0, 0, {site.peer: owned[site.peer]})
    assert worker.ask(FormContribution, 0, 0).kind == "bad_request"
