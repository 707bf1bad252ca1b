"""A site that is ahead of the others trains on until they are due, instead of letting its contribution age."""

from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.events import PeerView
from dilocoxd.rounds.gathering import Gathering
from dilocoxd.rounds.limits import RoundLimits
from dilocoxd.rounds.phase_state import PhaseState
from dilocoxd.rounds.phase_trainer import direct
from dilocoxd.rounds.trainer_track import TrainerState
from dilocoxd.wire import local
from tests.unit.rounds.site_model import digest, state_ready

ME, OTHER = PeerId("me"), PeerId("other")


def due_state(*, others_due_at: float | None, extend_steps_max: int = 40) -> PhaseState:
    """Trainers stand at a boundary that could be closed; ten steps of half a second are behind them."""
    settings = ev.PhaseSettings("arrival", 10, extend_steps_max, 0, save_every_rounds=0)
    m = PhaseState(settings, ev.SiteRecord(phases_reserved=9), next_phase=PhaseId(3), inner_steps=10, lowrank_r=0)
    m.shared, m.has_outer, m.is_begun, m.now = state_ready(0, 2), True, True, Monotonic(100.0)
    m.trainer.state, m.trainer.base_round, m.trainer.inner_steps = TrainerState.DUE, RoundIndex(2), 10
    m.trainer.step_times.extend([0.5] * 10)
    m.others_due_at = None if others_due_at is None else Monotonic(others_due_at)
    return m


def told(m: PhaseState) -> object:
    assert direct(m)
    (command,) = (c for c in m.out if isinstance(c, ev.TellTrainer))
    return command.message


def test_steps_that_fit_before_the_others_are_due_are_trained() -> None:
    assert told(due_state(others_due_at=103.2)) == local.Extend(6)


def test_nobody_to_wait_for_or_overdue_or_less_than_a_step_closes_at_once() -> None:
    for due in (None, 99.0, 100.4):
        assert isinstance(told(due_state(others_due_at=due)), local.CloseBoundary)


def test_at_most_a_second_phase_and_the_limit_of_extensions() -> None:
    assert told(due_state(others_due_at=1000.0)) == local.Extend(10)
    assert told(due_state(others_due_at=1000.0, extend_steps_max=4)) == local.Extend(4)
    m = due_state(others_due_at=1000.0)
    assert told(m) == local.Extend(10)
    m.trainer.state, m.out = TrainerState.DUE, []
    assert isinstance(told(m), local.CloseBoundary)


def test_others_are_due_when_their_planned_steps_are_done_if_the_group_would_wait_so_long() -> None:
    limits = RoundLimits(grace_factor=0.5, grace_min_s=1.0, grace_max_s=100.0)
    chain = ChainView(RunId("run"), RoundIndex(0), Digest(digest(0)), Digest(digest(0)), inner_steps=10)
    gathering = Gathering(ME, limits)
    views = {OTHER: PeerView(OTHER, True, True, RoundIndex(0), Digest(digest(0)), step_seconds=2.0)}
    assert gathering.others_due(chain, views, Monotonic(5.0)) is None, "it has not contributed yet"
    for phase, at in ((0, 10.0), (1, 30.0)):
        gathering.pace.contributed(OTHER, PhaseId(phase), Monotonic(at))
    assert gathering.others_due(chain, views, Monotonic(45.0)) == 50.0
    assert gathering.others_due(chain, views, Monotonic(35.0)) is None, "the group would not wait so long"
    assert gathering.others_due(chain, views, Monotonic(51.0)) is None, "overdue"
    gathering.slow.add(OTHER)
    assert gathering.others_due(chain, views, Monotonic(45.0)) is None
