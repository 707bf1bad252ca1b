"""Sites of different speed: a slower one plans fewer inner steps, so that all reach the boundary together."""

import doctest

import pytest

from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.rounds import phase_events as ev, site_steps
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.events import PeerView
from dilocoxd.rounds.gathering import Gathering
from dilocoxd.rounds.limits import RoundLimits
from dilocoxd.rounds.phase_state import PhaseState
from dilocoxd.rounds.phases import PhaseMachine
from dilocoxd.rounds.site_steps import site_inner_steps
from dilocoxd.wire import local
from tests.unit.rounds.site_model import digest
from tests.unit.rounds.test_alignment import due_state, told

HEAD = Digest(digest(0))
CHAIN = ChainView(RunId("run"), RoundIndex(0), HEAD, HEAD, inner_steps=20)


def view(name: str, step_seconds: float | None, *, is_live: bool = True) -> PeerView:
    return PeerView(PeerId(name), is_live, True, RoundIndex(0), HEAD, step_seconds=step_seconds)


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
    machine = PhaseMachine(ev.PhaseSettings("arrival", 20, 40, 0, site_steps_min=2), ev.SiteRecord())
    state: PhaseState = machine.state
    assert state.planned_steps == 20
    state.trainer.step_times.extend([0.4] * 5)
    machine.handle(ev.OthersDue(None, (0.1, 0.1)), now=Monotonic(1.0))
    assert state.planned_steps == 5
    state.trainer.connect(2, now=Monotonic(2.0))
    assert state.planned_steps == 5, "a new generation is as fast as the one before"


def test_others_are_due_when_their_own_number_of_steps_is_done() -> None:
    slow, fast = view("slow", 0.4), view("fast", 0.1)
    limits = RoundLimits(grace_min_s=100.0, grace_max_s=100.0, site_steps_min=1)
    gathering = Gathering(PeerId("me"), limits)
    for peer in (slow, fast):
        gathering.pace.contributed(peer.peer, PhaseId(0), Monotonic(10.0))
    views = {peer.peer: peer for peer in (slow, fast)}
    assert gathering.others_due(CHAIN, views, Monotonic(10.5), 0.1) == pytest.approx(12.0), "5 steps of 0.4 s"
    gathering.limits = RoundLimits(grace_min_s=100.0, grace_max_s=100.0)
    assert gathering.others_due(CHAIN, views, Monotonic(10.5), 0.1) == pytest.approx(18.0), "20 of them"


def test_only_sites_that_are_there_and_known_set_the_pace() -> None:
    peers = (view("a", 0.1), view("b", None), view("c", 0.2, is_live=False))
    views = {peer.peer: peer for peer in peers}
    assert Gathering(PeerId("me"), RoundLimits(site_steps_min=1)).paces(views) == {PeerId("a"): 0.1}
    assert Gathering(PeerId("me"), RoundLimits()).paces(views) == {}


def test_trainers_are_told_the_planned_number() -> None:
    m = due_state(others_due_at=None)
    m.settings = ev.PhaseSettings("arrival", 10, 40, 0, save_every_rounds=0, site_steps_min=1)
    m.others_pace = (0.1,)
    message = told(m)
    assert isinstance(message, local.CloseBoundary)
    assert message.inner_steps == 2, "steps of 0.5 s against 0.1 s"
