"""Sites of different speed: a slower one plans fewer inner steps, so that all reach the boundary together."""

import doctest
import random
from dataclasses import replace

import pytest

from dilocoxd.ids import Monotonic, PeerId, PhaseId
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.phase import inner_steps as site_steps, inputs as ev
from dilocoxd.machines.phase.inner_steps import site_inner_steps
from dilocoxd.machines.phase.machine import PhaseMachine
from dilocoxd.machines.phase.settings import PhaseSettings, SiteRecord
from dilocoxd.machines.phase.state import PhaseState
from dilocoxd.machines.round.gathering import others_due, paces
from dilocoxd.machines.round.height import Height
from dilocoxd.wire.local import trainer as local_trainer
from tests.unit.machines import round_world
from tests.unit.machines.round.test_alignment import due_state, told


def view(name: str, step_seconds: float | None, *, is_live: bool = True) -> PeerView:
    return replace(round_world.view(PeerId(name), is_live=is_live), step_seconds=step_seconds)


def with_others(limits: RoundLimits, *peers: PeerView) -> Height:
    height = round_world.height_of(limits=limits)
    height.chain = replace(height.chain, inner_steps=20)
    height.book.see(peers, height.chain, Monotonic(0.0))
    return height


def test_site_of_median_speed_does_them_all_and_a_slower_one_as_many_as_fit() -> None:
    assert doctest.testmod(site_steps).failed == 0
    assert site_inner_steps(20, 0.3, [0.1], 1) == 6, "of two the faster one sets the time"
    assert site_inner_steps(20, 0.1, [0.3], 1) == 20
    assert site_inner_steps(20, 0.3, [0.1, 0.3], 1) == 20, "one fast site does not cut the phases of all others"


@pytest.mark.parametrize(("step", "others", "at_least"), [(0.3, [0.1], 0), (0.3, [], 1), (0.0, [0.1], 1)])
def test_without_the_schedule_or_a_measurement_all_plan_the_same(
    step: float, others: list[float], at_least: int
) -> None:
    assert site_inner_steps(20, step, others, at_least) == 20


def test_never_less_than_the_minimum_and_never_more_than_h() -> None:
    assert site_inner_steps(20, 50.0, [0.1], 3) == 3
    assert site_inner_steps(2, 50.0, [0.1], 3) == 2


def test_phase_begins_with_as_many_steps_as_fit_at_the_speed_measured_so_far() -> None:
    machine = PhaseMachine(PhaseSettings("arrival", 20, 40, 0, site_steps_min=2), SiteRecord(), random.Random(0))
    state: PhaseState = machine.state
    assert state.planned_steps == 20
    state.trainer.step_times.extend([0.4] * 5)
    machine.handle(ev.OthersDue(None, (0.1, 0.1)), now=Monotonic(1.0))
    assert state.planned_steps == 5
    machine.handle(ev.TrainerConnected(2), now=Monotonic(2.0))
    assert state.planned_steps == 5, "a new generation is as fast as the one before"


def test_others_are_due_when_their_own_number_of_steps_is_done() -> None:
    per_site = RoundLimits(grace_min_s=100.0, grace_max_s=100.0, site_steps_min=1)
    for limits, due, why in ((per_site, 12.0, "5 steps of 0.4 s"), (replace(per_site, site_steps_min=0), 18.0, "20")):
        height = with_others(limits, view("slow", 0.4), view("fast", 0.1))
        for peer in ("slow", "fast"):
            height.book.pace.contributed(PeerId(peer), PhaseId(0), Monotonic(10.0))
        assert others_due(height, Monotonic(10.5), 0.1) == pytest.approx(due), why


def test_only_sites_that_are_there_and_known_set_the_pace() -> None:
    peers = (view("a", 0.1), view("b", None), view("c", 0.2, is_live=False))
    assert paces(with_others(RoundLimits(site_steps_min=1), *peers)) == {PeerId("a"): 0.1}
    assert paces(with_others(RoundLimits(), *peers)) == {}


def test_trainers_are_told_the_planned_number() -> None:
    m = due_state(others_due_at=None, site_steps_min=1)
    m.others = ev.OthersDue(None, (0.1,))
    message = told(m)
    assert isinstance(message, local_trainer.CloseBoundary)
    assert message.inner_steps == 2, "steps of 0.5 s against 0.1 s"
