"""LEFT_OUT makes the state as if one contribution had not been counted, where this site sums; then it is gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dilocoxd.config.manifest import Manifest
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.left_out import LeftOutOf
from dilocoxd.wire.local.outer_worker import ApplyResult, LoadState, Settle
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
from tests.harness.outer_worker.in_parts import InnerParts
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form, take_anchor

NAMES = ("Qma", "Qmb", "Qmc")
TOKENS = {"Qma": 10, "Qmb": 20, "Qmc": 30}
SMALL = {"num_layers": 1, "vocab_size": 64}
EXACT: dict[str, Any] = {
    "model": SMALL,
    "strategy": {"codec": "fp32"},
    "aggregation": {"norm_clip": False, "drop_contrary": False},
}
STREAMING = {"codec": "fp32", "delay": "streaming", "fragments": 2, "error_feedback": "none"}
ADAM = {"optimizer": "adam", "lr": 0.01, "momentum": 0.9}
NUM_ROUNDS = 3
ROUNDING = 1e-6
"""Of sums of fp32 numbers below 4 in another order."""


def started(manifest: Manifest, num_parts: int = 1) -> list[Site]:
    sites = []
    for name in NAMES:
        is_one = num_parts == 1
        worker: OuterDaemon = (
            InnerWorker(make_plan(manifest)) if is_one else InnerParts(manifest, num_parts, nodes=(num_parts,))
        )
        worker.do(LoadState, "")
        sites.append(Site(name, worker))
    return sites


def one_round(
    sites: list[Site], plan: OuterPlan, number: int, scales: tuple[float, ...], without: int | None = None
) -> None:
    """All contribute noise around the same vector, so often; each sums every third segment, and looks at `without`."""
    common = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(number))
    for index, (site, scale) in enumerate(zip(sites, scales, strict=True)):
        own = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(100 * number + index + 1))
        form(site, scale * (common + 0.1 * own), number)
    looked_at = dict.fromkeys(NAMES, without) if without is not None else {}
    commit(sites, number, number, exchange(sites, (0, 1, 2), TOKENS), looked_at)
    take_anchor(sites)


def left_out(site: Site) -> tuple[torch.Tensor, LeftOutOf | None]:
    assert site.worker.described is not None
    data, end = site.worker.read(local_buffers.LEFT_OUT), 4 * site.worker.described.numel
    return torch.frombuffer(bytearray(data[:end]), dtype=torch.float32), LeftOutOf.decode(data[end:])


def anchor(site: Site) -> torch.Tensor:
    return site.worker.floats(local_buffers.ANCHOR)


def here(plan: OuterPlan, owner: int) -> torch.Tensor:
    """Where this site sums, bool[numel]."""
    found = torch.zeros(plan.layout.numel, dtype=torch.bool)
    for segment in plan.layout.segments[owner::3]:
        found[segment.start : segment.stop] = True
    return found


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [{}, {"strategy": STREAMING}, {"outer": ADAM}, {"outer": ADAM, "strategy": STREAMING}],
    ids=["plain", "streaming", "adam", "streaming-adam"],
)
def test_the_state_without_a_contribution_is_that_in_which_it_was_zero(
    changes: dict[str, dict[str, Any]], num_parts: int
) -> None:
    """From a state in which the optimizer has moments already."""
    manifest, without, zero = tiny_manifest(**EXACT | changes), 1, (1.0, 0.0, 1.0)
    plan, sites, others = make_plan(manifest), started(manifest, num_parts), started(manifest)
    for number in range(2):
        for each in (sites, others):
            one_round(each, plan, number, zero)
    one_round(sites, plan, 2, (1.0, 1.0, 1.0), without)
    one_round(others, plan, 2, zero)
    for owner, site in enumerate(sites):
        values, of = left_out(site)
        assert of == LeftOutOf(3, without)
        mine, difference = here(plan, owner), anchor(others[owner]) - anchor(site)
        assert difference[mine].norm() > 1e-3, "nothing was compared"
        assert torch.allclose(values[mine], difference[mine], atol=ROUNDING)
        assert not values[~mine].any(), "others sum there"


@pytest.mark.parametrize("num_parts", [1, 3])
def test_it_is_gone_with_the_next_entry_and_with_another_state(num_parts: int) -> None:
    plan = make_plan(tiny_manifest(**EXACT))
    sites = started(plan.manifest, num_parts)
    one_round(sites, plan, 0, (1.0, 1.0, 1.0), 2)
    one_round(sites, plan, 1, (1.0, 1.0, 1.0), 0)
    assert [left_out(site)[1] for site in sites] == [LeftOutOf(2, 0)] * 3
    form(sites[0], torch.zeros(plan.layout.numel), 2)
    sites[0].worker.do(Settle, 2, 2, False, ())
    sites[1].worker.do(LoadState, "")
    for site in sites[:2]:
        values, of = left_out(site)
        assert of is None
        assert not values.any()
    assert left_out(sites[2])[0].any()


def test_a_part_that_has_not_written_yet_makes_all_of_it_mean_nothing() -> None:
    said = LeftOutOf(3, 1).encode()
    assert LeftOutOf.decode(said * 3) == LeftOutOf(3, 1)
    assert LeftOutOf.decode(said + LeftOutOf(3, 1, is_counted=False).encode()) == LeftOutOf(3, 1)
    for other in (LeftOutOf.NOTHING, LeftOutOf(2, 1).encode(), LeftOutOf(3, 2).encode()):
        assert LeftOutOf.decode(said + other) is None
    assert LeftOutOf.decode(LeftOutOf(3, 1, is_counted=False).encode() * 2) is None, "nothing of it was counted"
    assert LeftOutOf.decode(LeftOutOf.NOTHING * 2) is None


def test_what_was_clipped_is_left_out_as_it_was_counted_and_what_was_dropped_is_not() -> None:
    plan = make_plan(tiny_manifest(model=SMALL, strategy={"codec": "fp32", "error_feedback": "none"}))
    sites, seen = started(plan.manifest), dict[int, float]()
    for number in range(NUM_ROUNDS):
        one_round(sites, plan, number, (1.0, 1.0, 100.0), number)
        values, of = left_out(sites[0])
        assert of == LeftOutOf(number + 1, number)
        seen[number] = float(values.norm()) / (1.0 + number)  # tokens are 10, 20 and 30
    assert 2.0 < seen[2] / seen[0] < 3.0, "2.5 median norms, not 100"
    sites, found = started(plan.manifest), []
    for number in range(NUM_ROUNDS):
        one_round(sites, plan, number, (1.0, 1.0, -1.0), number)
        found.append(left_out(sites[0])[1])
    assert found == [LeftOutOf(1, 0), LeftOutOf(2, 1), None], "nothing of the third was counted"


def test_a_run_that_evaluates_nothing_has_no_such_buffer() -> None:
    plan = make_plan(tiny_manifest(data={"corpus": "english", "evaluate_every_rounds": 0}))
    assert local_buffers.LEFT_OUT not in {one.name for one in plan.described().buffers}
    one_round(started(plan.manifest), plan, 0, (1.0, 1.0, 1.0), 0)


def test_what_was_summed_of_a_round_that_committed_without_us_is_not_measured() -> None:
    plan = make_plan(tiny_manifest(**EXACT))
    sites = started(plan.manifest)
    for number, site in enumerate(sites):
        form(site, torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(number)), 0)
    owned = exchange(sites, (0, 1, 2), {})
    sites[0].worker.do(Settle, 0, 0, False, owned["Qma"])
    sites[0].worker.do(ApplyResult, 0, "", 0, 0)
    assert left_out(sites[0])[1] is None
