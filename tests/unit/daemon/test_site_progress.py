"""What trainers report becomes what the daemon shows."""

import math
from dataclasses import replace

import pytest

from dilocoxd.daemon.site.interface import StepReported
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.ids import PhaseId
from dilocoxd.telemetry.catalogue import PhaseClosed
from dilocoxd.wire.local.trainer import NOT_FINITE, UNKNOWN, BoundaryClosed, StageTimes, StepDone
from tests.unit.daemon.observe.test_alert_rules import World

STEP = StepDone(PhaseId(1), 1, 1, 3.0, 8, 0.1, 0.0)


def reported(loss: float) -> StepReported:
    event = SiteProgress().take(replace(STEP, loss=loss))
    assert isinstance(event, StepReported)
    return event


def test_a_loss_that_is_no_number_is_none_and_raises_the_alert() -> None:
    world = World()
    world.change(losses__inner=reported(NOT_FINITE).loss)
    assert world.look() == {"loss_not_finite"}
    world.change(losses__inner=reported(7.5).loss)
    assert world.look() == set()


@pytest.mark.parametrize("loss", [0.0, -3.0, 1e20])
def test_every_other_loss_stays_what_it_is(loss: float) -> None:
    assert reported(loss).loss == loss
    assert math.isnan(reported(NOT_FINITE).loss)


def test_time_for_data_and_waits_of_stages_are_smoothed_like_the_step_time() -> None:
    progress = SiteProgress()
    progress.take(STEP)
    assert (progress.data_seconds, progress.bubble) == (None, None), "a loop of somebody's own tells neither"
    progress.take(replace(STEP, step_seconds=0.1, data_seconds=0.0, bubble=0.5))
    progress.take(replace(STEP, step_seconds=0.6, data_seconds=0.1, bubble=0.0))
    progress.take(replace(STEP, step_seconds=0.2, data_seconds=UNKNOWN, bubble=UNKNOWN))
    assert (progress.step_seconds, progress.data_seconds, progress.bubble) == pytest.approx((0.2, 0.02, 0.4))


@pytest.mark.parametrize(("told", "known"), [(NOT_FINITE, None), (0.0, 0.0), (5.25, 5.25)])
def test_a_phase_without_a_finite_loss_has_no_mean(told: float, known: float | None) -> None:
    event = SiteProgress().take(BoundaryClosed(PhaseId(1), 4, 32, told, False, 1))
    assert isinstance(event, PhaseClosed)
    assert event.mean_loss == known


def test_speeds_of_stages_are_those_of_this_generation() -> None:
    progress = SiteProgress()
    told = StageTimes((0.1, 0.3), (3, 1), 0.25)
    progress.take(replace(STEP, stages=told))
    assert progress.stages == told
    progress.new_generation()
    assert progress.stages is None, "the next one may have another cut"
