"""The trainer of a site whose inner steps have a fixed length: `dilocoxd.trainer.main` with pauses.

The pause is a part of the step, so everybody is told how long a step really takes.
"""

import os
import time
from pathlib import Path
from typing import Any

from dilocoxd.trainer import main as trainer
from dilocoxd.trainer.loop import PhaseProgress, TrainingLoop
from tests.bench.headline.waits import BEGAN, ENDED, WAITS_VARIABLE, note

STEP_S_VARIABLE = "DILOCOXD_BENCH_STEP_S"


class PacedLoop(TrainingLoop):
    """Sleeps once a step's work is done. Notes when it waits for the daemon, as the loop counts it."""

    _began = 0.0

    def _step(self, phase: PhaseProgress) -> list[Any]:
        self._began = time.monotonic()
        return super()._step(phase)

    def _apply(self, sum_of_squares: float) -> None:
        super()._apply(sum_of_squares)
        length_s = float(os.environ[STEP_S_VARIABLE])
        time.sleep(max(0.0, length_s - (time.monotonic() - self._began)))

    def _wait(self) -> list[Any]:
        path = os.environ.get(WAITS_VARIABLE)
        if not path or self._phase is None or self._is_paused:
            return super()._wait()
        note(Path(path), BEGAN)
        commands = super()._wait()
        note(Path(path), ENDED)
        return commands


def main() -> int:
    """Exit code."""
    trainer.TrainingLoop = PacedLoop
    return trainer.main()
