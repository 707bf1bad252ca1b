"""A site that is ahead of the others trains on until they are due, instead of letting its contribution age."""

import random
from dataclasses import replace

from dilocoxd.ids import Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.settings import PhaseSettings, SiteRecord
from dilocoxd.machines.phase.state import PhaseState
from dilocoxd.machines.phase.trainer_state import TrainerState
from dilocoxd.machines.phase.trainers import direct
from dilocoxd.machines.round.gathering import others_due
from dilocoxd.wire.local import trainer as local_trainer
from tests.unit.machines.phase.site_model import state_ready
from tests.unit.machines.round_world import height_of, view

OTHER = PeerId("other")


def due_state(*, others_due_at: float | None, extend_steps_max: int = 40, site_steps_min: int = 0) -> PhaseState:
    """Trainers stand at a boundary that could be closed; ten steps of half a second are behind them."""
    settings = PhaseSettings("arrival", 10, extend_steps_max, 0, save_every_rounds=0, site_steps_min=site_steps_min)
    m = PhaseState(settings, SiteRecord(phases_reserved=9), random.Random(0))
    m.shared, m.queue.is_attached, m.is_begun, m.now = state_ready(0, 2), True, True, Monotonic(100.0)
    m.trainer.begin_phase(PhaseId(3), 10)
    m.trainer.state, m.trainer.present_phase.base_round = TrainerState.DUE, RoundIndex(2)
    m.trainer.step_times.extend([0.5] * 10)
    m.others = ev.OthersDue(None if others_due_at is None else Monotonic(others_due_at))
    return m


def told(m: PhaseState) -> object:
    assert direct(m)
    (command,) = (c for c in m.out if isinstance(c, cmd.TellTrainer))
    return command.message


def test_steps_that_fit_before_the_others_are_due_are_trained() -> None:
    assert told(due_state(others_due_at=103.2)) == local_trainer.Extend(6)


def test_nobody_to_wait_for_or_overdue_or_less_than_a_step_closes_at_once() -> None:
    for due in (None, 99.0, 100.4):
        assert isinstance(told(due_state(others_due_at=due)), local_trainer.CloseBoundary)


def test_at_most_a_second_phase_and_the_limit_of_extensions() -> None:
    assert told(due_state(others_due_at=1000.0)) == local_trainer.Extend(10)
    assert told(due_state(others_due_at=1000.0, extend_steps_max=4)) == local_trainer.Extend(4)
    m = due_state(others_due_at=1000.0)
    assert told(m) == local_trainer.Extend(10)
    m.trainer.state, m.out = TrainerState.DUE, []
    assert isinstance(told(m), local_trainer.CloseBoundary)


def test_others_are_due_when_their_planned_steps_are_done_if_the_group_would_wait_so_long() -> None:
    limits = RoundLimits(grace_factor=0.5, grace_min_s=1.0, grace_max_s=100.0)
    height = height_of(limits=limits)
    height.chain = replace(height.chain, inner_steps=10)
    height.book.see([replace(view(OTHER), step_seconds=2.0)], height.chain, Monotonic(5.0))
    assert others_due(height, Monotonic(5.0)) is None, "it has not contributed yet"
    for phase, at in ((0, 10.0), (1, 30.0)):
        height.book.pace.contributed(OTHER, PhaseId(phase), Monotonic(at))
    assert others_due(height, Monotonic(45.0)) == 50.0
    assert others_due(height, Monotonic(35.0)) is None, "the group would not wait so long"
    assert others_due(height, Monotonic(51.0)) is None, "overdue"
    height.book.waited_in_vain(offering=[OTHER])
    assert others_due(height, Monotonic(45.0)) is None
