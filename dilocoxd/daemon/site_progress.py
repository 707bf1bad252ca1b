"""Turns what the trainers report into the events and totals that the rest of the daemon shows."""

from dataclasses import dataclass

from dilocoxd.daemon.site_interface import (
    AnchorAdopted,
    PhaseClosed,
    PhaseStarted,
    SiteEvent,
    StepReported,
    ValidationMeasured,
)
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.rounds.phase_events import TrainerMessage
from dilocoxd.rounds.phase_state import PhaseState
from dilocoxd.rounds.trainer_track import TrainerState
from dilocoxd.wire import local

STEP_NEW = 0.2
"""Weight of the newest inner step in the smoothed step time."""


@dataclass(slots=True)
class SiteProgress:
    """Totals over all generations of the trainers since the daemon started."""

    tokens: int = 0
    train_seconds: float = 0.0
    idle_before: float = 0.0
    """Of generations that are gone."""
    idle_now: float = 0.0
    global_step: int = 0
    step_seconds: float = 0.0
    base_round: RoundIndex | None = None
    """Newest base of a phase; between a boundary and the copy of the next base still the one before."""
    _started: PhaseId | None = None

    @property
    def idle_seconds(self) -> float:
        """Time in which trainers wanted to train but waited for the daemon."""
        return self.idle_before + self.idle_now

    def new_generation(self) -> None:
        """Idle time is counted from zero by each generation."""
        self.idle_before, self.idle_now = self.idle_seconds, 0.0

    def take(self, message: TrainerMessage) -> SiteEvent | None:
        """The event that this message means for others."""
        match message:
            case local.StepDone():
                return self._step(message)
            case local.BoundaryClosed():
                return PhaseClosed(message.phase, message.inner_steps, message.tokens, message.mean_loss)
            case local.AnchorTaken():
                return AnchorAdopted(message.round, message.how, message.phase, message.inner_step)
            case local.Evaluated():
                return ValidationMeasured(message.round, message.validation_loss, message.seconds)
            case _:
                return None

    def _step(self, step: local.StepDone) -> StepReported:
        self.tokens += step.tokens
        self.train_seconds += step.step_seconds
        self.idle_now = max(self.idle_now, step.idle_seconds)
        self.global_step = step.global_step
        known = self.step_seconds or step.step_seconds
        self.step_seconds = known + STEP_NEW * (step.step_seconds - known)
        return StepReported(
            phase=step.phase,
            inner_step=step.inner_step,
            global_step=step.global_step,
            loss=step.loss,
            tokens=step.tokens,
            step_seconds=step.step_seconds,
            idle_seconds=self.idle_seconds,
        )

    def phase_started(self, state: PhaseState) -> PhaseStarted | None:
        """The event, when the trainers train a phase that was not reported yet."""
        trainer = state.trainer
        if trainer.base_round is not None:
            self.base_round = trainer.base_round
        if trainer.state is not TrainerState.TRAINING or trainer.phase == self._started or state.shared is None:
            return None
        self._started = trainer.phase
        return PhaseStarted(trainer.phase, state.shared.round, trainer.inner_steps)
