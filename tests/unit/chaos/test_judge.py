"""The soak's judgement: a good run passes, and each broken promise is found."""

from typing import Any

import pytest

from tests.chaos.judge import Left, Verdict, check_phases, check_undisturbed, fates_of, loss_curve, loss_excess
from tests.chaos.plan import SECONDS, make_plan


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, **fields}


def closed(phase: int) -> dict[str, Any]:
    return event("phase.closed", phase=phase)


def settled(phase: int, *, is_included: bool) -> dict[str, Any]:
    return event("contribution.settled", phase=phase, is_included=is_included)


def row(index: int, *contributors: tuple[str, int]) -> dict[str, Any]:
    return {
        "round": index,
        "entry_hash": f"hash{index}",
        "contributors": [{"peer": peer, "phase": phase, "tokens": 100} for peer, phase in contributors],
    }


def judged(events: list[dict[str, Any]], *phases_in_chain: int) -> Verdict:
    verdict = Verdict()
    chain = [row(index, ("QmA", phase)) for index, phase in enumerate(phases_in_chain)]
    check_phases(verdict, [Left("a", "QmA", events, chain)])
    return verdict


def test_plan_is_the_same_for_the_same_seed_and_fills_the_time() -> None:
    plan = make_plan(7, 600, 4)
    assert plan == make_plan(7, 600, 4)
    assert plan != make_plan(8, 600, 4)
    assert len(plan) > 80
    assert {fault.kind for fault in plan} == set(SECONDS)
    assert all(fault.other != fault.site for fault in plan)


def test_every_fate_is_told_apart() -> None:
    lives = [closed(1), settled(1, is_included=True), closed(2), settled(2, is_included=False), closed(3)]
    lives += [event("daemon.started"), closed(4), event("contribution.refused", phase=4, reason="no such file")]
    lives += [closed(5), event("daemon.stopped"), event("daemon.started"), closed(6)]
    lives += [closed(7), event("contribution.refused", phase=7, reason="nothing was trained since then")]
    fates = {1: "included", 2: "fed back", 3: "died", 4: "refused", 5: "saved", 6: "lost", 7: "empty"}
    assert fates_of(lives) == fates


def test_work_that_its_own_site_refused_is_a_broken_promise() -> None:
    refused = event("contribution.refused", phase=2, reason="what we gave to it is not kept (any more)")
    verdict = judged([closed(1), settled(1, is_included=True), closed(2), refused], 1)
    assert ["refused by its own site" in text for text in verdict.violations] == [True]


def test_phases_in_the_chain_or_in_the_error_feedback_are_fine() -> None:
    verdict = judged([closed(1), settled(1, is_included=True), closed(2), settled(2, is_included=False)], 1)
    assert verdict.violations == []
    assert verdict.values["phases"]["fed back"] == 1


def test_phase_that_a_lost_fork_dropped_must_have_been_returned() -> None:
    dropped = [closed(1), settled(1, is_included=True)]
    assert any("not in the chain" in text for text in judged(dropped).violations)
    returned = event("contribution.returned", phase=1, is_withdrawn=False)
    assert judged([*dropped, returned]).violations == []
    assert any("and in the error feedback" in text for text in judged([*dropped, returned], 1).violations)
    withdrawn = event("contribution.returned", phase=1, is_withdrawn=True)
    assert judged([*dropped, returned, withdrawn], 1).violations == []


def test_phase_without_a_fate_is_lost() -> None:
    assert judged([closed(1)]).violations == ["a: phase 1 was closed and has no fate"]


def undisturbed(events: list[dict[str, Any]], *phases_in_chain: int) -> list[str]:
    verdict = Verdict()
    chain = [row(index, ("QmA", phase)) for index, phase in enumerate(phases_in_chain)]
    check_undisturbed(verdict, [Left("a", "QmA", events, chain)])
    return verdict.violations


STOPPED = event("daemon.stopped")


def test_a_fork_costs_who_was_never_touched_no_phase() -> None:
    made = [closed(phase) for phase in range(4)]
    lives = [*made, settled(0, is_included=True), settled(1, is_included=True), settled(2, is_included=False)]
    returned = event("contribution.returned", phase=1, is_withdrawn=False)
    assert undisturbed([*lives, returned, STOPPED], 0) == []
    assert undisturbed([*lives, STOPPED], 0) == ["a: phase 1 was settled as included and is not in the chain"]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([closed(0), closed(1), closed(2), STOPPED], "phases [0, 2] were in flight"),
        ([closed(0), closed(1), settled(1, is_included=True), STOPPED], "phases [0] were in flight"),
        ([closed(0), event("daemon.started"), closed(1), settled(1, is_included=True)], "phases [0] died"),
        ([closed(1), settled(1, is_included=True), STOPPED], "its phases are [1]"),
        ([closed(0), closed(1), settled(1, is_included=True)], "phase 0 was closed and has no fate"),
    ],
)
def test_who_was_never_touched_has_nothing_to_excuse_a_lost_phase(events: list[dict[str, Any]], told: str) -> None:
    (violation,) = undisturbed(events, 1)
    assert told in violation


def test_losses_are_compared_at_equal_tokens() -> None:
    reference = [(0, 6.0), (1000, 4.0), (2000, 3.0)]
    assert loss_excess([(500, 5.0), (1500, 3.5)], reference) == pytest.approx(0.0)
    assert loss_excess([(1500, 3.85)], reference) == pytest.approx(0.1)
    assert loss_excess([(5000, 3.0)], reference) is None


def test_curve_counts_tokens_of_the_final_chain() -> None:
    chain = [row(0, ("QmA", 1), ("QmB", 1)), row(1, ("QmA", 2))]
    measured = [event("validation.measured", round=k, validation_loss=float(5 - k)) for k in (0, 1, 2, 3)]
    assert loss_curve(chain, measured) == [(0, 5.0), (200, 4.0), (300, 3.0)]
