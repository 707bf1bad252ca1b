"""LEFT_OUT makes the state as if one contribution had not been counted, where this site sums; then it is gone."""

from __future__ import annotations

import pytest
import torch

from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.left_out import LEFT_OUT_BYTES, LeftOutOf
from dilocoxd.wire.local.outer_worker import ApplyResult, LoadState, Settle
from dilocoxd.wire.placement import OuterPart
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form, take_anchor

NAMES = ("Qma", "Qmb", "Qmc")
EXACT = {"strategy": {"codec": "fp32"}, "aggregation": {"norm_clip": False, "drop_contrary": False}}
NUM_ROUNDS = 8
ROUNDING = 1e-6
"""Of sums of fp32 numbers below 4 in another order."""


def started(plan: OuterPlan, every: int = 1) -> list[Site]:
    sites = [Site(name, InnerWorker(plan, without_one_every=every)) for name in NAMES]
    for site in sites:
        site.worker.do(LoadState, "")
    return sites


def one_round(sites: list[Site], plan: OuterPlan, number: int, scales: tuple[float, ...]) -> None:
    """All contribute noise around the same vector, so often; each sums every third segment."""
    common = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(number))
    for index, (site, scale) in enumerate(zip(sites, scales, strict=True)):
        own = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(100 * number + index + 1))
        form(site, scale * (common + 0.1 * own), number)
    commit(sites, number, number, exchange(sites, (0, 1, 2), {"Qma": 10, "Qmb": 20, "Qmc": 30}))
    take_anchor(sites)


def left_out(site: Site) -> tuple[torch.Tensor, LeftOutOf | None]:
    data = site.worker.read(local_buffers.LEFT_OUT)
    values = torch.frombuffer(bytearray(data[:-LEFT_OUT_BYTES]), dtype=torch.float32)
    return values, LeftOutOf.decode(data[-LEFT_OUT_BYTES:])


def anchor(site: Site) -> torch.Tensor:
    return site.worker.floats(local_buffers.ANCHOR)


def here(plan: OuterPlan, owner: int) -> torch.Tensor:
    """Where this site sums, bool[numel]."""
    found = torch.zeros(plan.layout.numel, dtype=torch.bool)
    for segment in plan.layout.segments[owner::3]:
        found[segment.start : segment.stop] = True
    return found


@pytest.mark.parametrize("strategy", [{}, {"delay": "streaming", "fragments": 2, "error_feedback": "none"}])
def test_the_state_without_a_contribution_is_that_in_which_it_was_zero(strategy: dict[str, object]) -> None:
    plan = make_plan(tiny_manifest(**EXACT | {"strategy": EXACT["strategy"] | strategy}))
    sites = started(plan)
    one_round(sites, plan, 0, (1.0, 1.0, 1.0))
    for owner, site in enumerate(sites):
        values, of = left_out(site)
        assert of is not None
        assert of.round == 1
        others = started(plan, every=0)
        one_round(others, plan, 0, tuple(float(place != of.place) for place in range(3)))
        mine, difference = here(plan, owner), anchor(others[owner]) - anchor(site)
        assert difference[mine].norm() > 1.0, "nothing was compared"
        assert torch.allclose(values[mine], difference[mine], atol=ROUNDING)
        assert not values[~mine].any(), "others sum there"


def test_it_is_gone_with_the_next_entry_and_another_one_is_drawn() -> None:
    plan = make_plan(tiny_manifest(**EXACT))
    sites = started(plan)
    places = set()
    for number in range(NUM_ROUNDS):
        one_round(sites, plan, number, (1.0, 1.0, 1.0))
        found = [left_out(site)[1] for site in sites]
        assert {of.round for of in found if of} == {number + 1}
        places |= {of.place for of in found if of}
    assert places == {0, 1, 2}, "a site is never drawn"
    form(sites[0], torch.zeros(plan.layout.numel), NUM_ROUNDS)
    sites[0].worker.do(Settle, NUM_ROUNDS, NUM_ROUNDS, False, ())
    values, of = left_out(sites[0])
    assert of is None
    assert not values.any()


def test_what_was_clipped_is_left_out_as_it_was_counted_and_what_was_dropped_is_not() -> None:
    plan = make_plan(tiny_manifest(strategy={"codec": "fp32", "error_feedback": "none"}))
    sites, seen = started(plan), dict[int, float]()
    for number in range(NUM_ROUNDS):
        one_round(sites, plan, number, (1.0, 1.0, 100.0))
        values, of = left_out(sites[0])
        assert of is not None
        seen[of.place] = float(values.norm()) / (1.0 + of.place)  # tokens are 10, 20 and 30
    assert set(seen) == {0, 1, 2}
    assert 2.0 < seen[2] / seen[0] < 3.0, "2.5 median norms, not 100"
    sites, found = started(plan), []
    for number in range(NUM_ROUNDS):
        one_round(sites, plan, number, (1.0, 1.0, -1.0))
        found.append(left_out(sites[0])[1])
    assert {of.place if of else None for of in found} == {0, 1, None}, "nothing of the third was counted"


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"corpus": "english", "evaluate_every_rounds": 0}},
        {"outer": {"optimizer": "adam", "lr": 0.01, "momentum": 0.9}},
    ],
)
def test_runs_that_cannot_measure_have_no_such_buffer(changes: dict[str, dict[str, object]]) -> None:
    plan = make_plan(tiny_manifest(**changes))
    assert local_buffers.LEFT_OUT not in {one.name for one in plan.described().buffers}
    one_round(started(plan), plan, 0, (1.0, 1.0, 1.0))


def test_a_part_of_an_outer_worker_has_none() -> None:
    """Its memory may be another machine's."""
    plan = make_plan(tiny_manifest(), OuterPart.parse("0/2"))
    assert local_buffers.LEFT_OUT not in {one.name for one in plan.described().buffers}


def test_only_every_so_many_rounds_are_measured_where_only_they_are_evaluated() -> None:
    plan = make_plan(tiny_manifest(**EXACT, data={"corpus": "english", "evaluate_every_rounds": 3}))
    sites = started(plan)
    found = []
    for number in range(6):
        one_round(sites, plan, number, (1.0, 1.0, 1.0))
        found.append(left_out(sites[0])[1])
    assert [of.round if of else None for of in found] == [None, None, 3, None, None, 6]


def test_what_was_summed_of_a_round_that_committed_without_us_is_not_measured() -> None:
    plan = make_plan(tiny_manifest(**EXACT))
    sites = started(plan)
    for number, site in enumerate(sites):
        form(site, torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(number)), 0)
    owned = exchange(sites, (0, 1, 2), {})
    sites[0].worker.do(Settle, 0, 0, False, owned["Qma"])
    sites[0].worker.do(ApplyResult, 0, "", 0, 0)
    assert left_out(sites[0])[1] is None
