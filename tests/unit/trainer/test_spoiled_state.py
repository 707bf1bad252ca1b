"""Trainers and shared states from which no step is finite: each newer one is tried, however many come (R29, ADR 31)."""

from pathlib import Path

import pytest

from dilocoxd.errors import WorkerError
from dilocoxd.ids import RoundIndex
from dilocoxd.wire.local import trainer as local
from tests.unit.trainer.test_profiling import PHASE_STEPS, one_rank, trained

__all__ = ["one_rank"]
TRIES = 20


@pytest.mark.usefixtures("one_rank")
def test_trying_newer_states_costs_no_restart_however_many_are_spoiled(tmp_path: Path) -> None:
    """A site that others keep from training, state after state, spent its restart budget and left the run."""
    newer = [[local.TakeAnchor(RoundIndex(number), "replace"), local.Extend(3)] for number in range(1, TRIES)]
    daemon, _ = trained(tmp_path / "site", [], *newer, scale=float("nan"))
    steps = daemon.of(local.StepDone)
    assert len(steps) == PHASE_STEPS + 3 * (TRIES - 1) and {step.loss for step in steps} == {local.NOT_FINITE}


@pytest.mark.usefixtures("one_rank")
def test_what_breaks_and_is_not_replaced_ends_the_trainers(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="not finite for 50 steps in a row"):
        trained(tmp_path / "site", [], [local.Extend(100)], scale=float("nan"))
