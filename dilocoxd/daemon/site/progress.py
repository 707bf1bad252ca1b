"""Turns what the trainers report into the events and totals that the rest of the daemon shows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from dilocoxd.daemon.site.interface import AnchorAdopted, ContributionLeftOut, LossesTold, SiteEvent, StepReported
from dilocoxd.daemon.site.profiling import Profiling
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase.state import PhaseState
from dilocoxd.machines.phase.trainer_state import TrainerState
from dilocoxd.machines.phase.vocabulary import TrainerMessage
from dilocoxd.telemetry import catalogue
from dilocoxd.wire.local import trainer as local_trainer
from dilocoxd.wire.local.worker import WorkerAlive

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
    tokens_per_step: int = 0
    learning_rate: float | None = None
    gradient_norm: float | None = None
    data_seconds: float | None = None
    """Smoothed, like `bubble` and `step_seconds`."""
    bubble: float | None = None
    stages: local_trainer.StageTimes | None = None
    """Of the places along a pipeline, of this generation."""
    skipped_before: int = 0
    """Of generations that are gone."""
    skipped_now: int = 0
    rank_memory_bytes: tuple[int, ...] = ()
    doing: str = ""
    """What the trainers are busy with, as they say, while that is no inner step."""
    base_round: RoundIndex | None = None
    """Newest base of a phase; between a boundary and the copy of the next base still the one before."""
    profiling: Profiling = field(default_factory=Profiling)
    _started: PhaseId | None = None

    @property
    def idle_seconds(self) -> float:
        """Time in which trainers wanted to train but waited for the daemon."""
        return self.idle_before + self.idle_now

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing, because a gradient was not finite."""
        return self.skipped_before + self.skipped_now

    def new_generation(self) -> None:
        """Idle time and skipped steps are counted from zero by each generation."""
        self.idle_before, self.idle_now = self.idle_seconds, 0.0
        self.skipped_before, self.skipped_now = self.skipped_steps, 0
        self.rank_memory_bytes = ()
        self.stages = None
        self.doing = ""
        self.profiling.lost()

    def told_by(self, message: TrainerMessage) -> Iterator[SiteEvent]:
        """The events that this message means for others."""
        event = self.take(message)
        if event is not None:
            yield event
        if isinstance(message, local_trainer.Evaluated):
            yield LossesTold(message.num_losses)
            yield from (ContributionLeftOut(message.round, measured) for measured in message.left_out)

    def take(self, message: TrainerMessage) -> SiteEvent | None:
        """The first of them, and all totals."""
        if not isinstance(message, WorkerAlive):
            self.doing = ""
        elif message.doing:
            self.doing = busy_with(message)  # else it only lives, and what it does was said before
        match message:
            case local_trainer.StepDone():
                return self._step(message)
            case local_trainer.BoundaryClosed():
                return catalogue.PhaseClosed(
                    phase=message.phase,
                    inner_steps=message.inner_steps,
                    tokens=message.tokens,
                    mean_loss=_finite(message.mean_loss),
                    global_step=self.global_step,
                )
            case local_trainer.AnchorTaken():
                return AnchorAdopted(message.round, message.how, message.phase, message.inner_step)
            case local_trainer.Evaluated() if message.validation_loss >= 0:
                return catalogue.ValidationMeasured(
                    round=message.round,
                    validation_loss=message.validation_loss,
                    by_source={one.name: one.loss for one in message.by_source},
                )
            case local_trainer.TraceBegun() | local_trainer.TraceWritten():
                return self.profiling.take(message)
            case _:
                return None

    def _step(self, step: local_trainer.StepDone) -> StepReported:
        self.tokens += step.tokens
        self.train_seconds += step.step_seconds
        self.idle_now = max(self.idle_now, step.idle_seconds)
        self.global_step = step.global_step
        self.profiling.step_done(step.global_step)
        self.tokens_per_step = step.tokens
        self.learning_rate, self.gradient_norm = _known(step.learning_rate), _known(step.gradient_norm)
        self.skipped_now = step.skipped_steps
        self.rank_memory_bytes = step.rank_memory_bytes or self.rank_memory_bytes
        self.step_seconds = _smoothed(self.step_seconds or None, step.step_seconds)
        if step.data_seconds >= 0:
            self.data_seconds = _smoothed(self.data_seconds, step.data_seconds)
        if step.bubble >= 0:
            self.bubble = _smoothed(self.bubble, step.bubble)
        self.stages = step.stages
        return StepReported(
            phase=step.phase,
            inner_step=step.inner_step,
            global_step=step.global_step,
            loss=math.nan if (loss := _finite(step.loss)) is None else loss,
            tokens=step.tokens,
            step_seconds=step.step_seconds,
            idle_seconds=self.idle_seconds,
            learning_rate=self.learning_rate,
            gradient_norm=self.gradient_norm,
        )

    def phase_started(self, state: PhaseState) -> catalogue.PhaseStarted | None:
        """The event, when the trainers train a phase that was not reported yet."""
        trainer = state.trainer
        phase = trainer.phase
        if phase is None or state.shared is None:
            return None
        if phase.base_round is not None:
            self.base_round = phase.base_round
        if trainer.state is not TrainerState.TRAINING or phase.number == self._started:
            return None
        self._started = phase.number
        return catalogue.PhaseStarted(phase=phase.number, base_round=state.shared.round, inner_steps=phase.inner_steps)


def _finite(loss: float) -> float | None:
    return loss if abs(loss) < local_trainer.NOT_FINITE else None


def _smoothed(before: float | None, value: float) -> float:
    return value if before is None else before + STEP_NEW * (value - before)


def _known(value: float) -> float | None:
    return value if value >= 0 else None


def busy_with(alive: WorkerAlive) -> str:
    """What a worker does and how far it is, for people."""
    share = f" {alive.per_mille / 10:.0f} %" if alive.per_mille else ""
    return f"{alive.doing}{share}"
