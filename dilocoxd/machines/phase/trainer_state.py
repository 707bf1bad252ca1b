"""What the trainers are doing, as far as their messages tell, and how long they may be silent.

Part of the phase machine (rounds/phases.py): keeps the facts, decides only when silence is too long.
"""

import dataclasses
import enum
import statistics
from collections import deque
from dataclasses import dataclass, field

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.rounds.phase_events import PhaseSettings
from dilocoxd.wire.local import CloseBoundary, StepDone

STEPS_REMEMBERED = 64
NEVER = Monotonic(0.0)
_NO_PHASE = PhaseId(0)
_GENESIS = RoundIndex(0)


class TrainerState(enum.Enum):
    """Where the trainers stand."""

    ABSENT = "absent"
    IDLE = "idle"
    """Connected, nothing ordered yet."""
    STARTING = "starting"
    """StartTraining sent, anchor not taken yet."""
    TRAINING = "training"
    DUE = "due"
    """They wait for Extend or CloseBoundary."""
    CLOSING = "closing"
    WAITING = "waiting"
    """Closed with `wait`: they wait for TakeAnchor."""


@dataclass(slots=True)
class TrainerTrack:
    """Facts about the present generation."""

    state: TrainerState = TrainerState.ABSENT
    generation: int = 0
    phase: PhaseId = _NO_PHASE
    base_round: RoundIndex | None = None
    """Round whose copy PHASE holds as base of `phase`; None while PHASE holds something else."""
    inner_step: int = 0
    inner_steps: int = 0
    skipped_steps: int = 0
    """Steps of this phase whose progress was dropped because the state was replaced."""
    extended: int = 0
    """Inner steps beyond the planned ones, for whatever reason ..."""
    aligned: int = 0
    """... and how many of them only to be ready together with the other sites."""
    closing: CloseBoundary | None = None
    closing_base: RoundIndex = _GENESIS
    """Base of the phase that is being closed."""
    taking: str = ""
    """`replace` or `merge` while a TakeAnchor is on its way."""
    is_evaluating: bool = False
    is_paused: bool = False
    is_stopping: bool = False
    needs_merge: bool = False
    """The last boundary was closed with `keep` and its result is not merged yet."""
    must_replace: bool = False
    """The shared state was replaced under the trainers."""
    last_sign: Monotonic = NEVER
    step_times: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))

    def connect(self, generation: int, *, now: Monotonic) -> None:
        """A fresh generation; only the speed of steps is remembered."""
        self.reset()
        self.state, self.generation, self.last_sign = TrainerState.IDLE, generation, now

    def reset(self) -> None:
        """The trainers are gone: their phase is abandoned."""
        fresh = TrainerTrack(generation=self.generation, phase=self.phase, step_times=self.step_times)
        for item in dataclasses.fields(TrainerTrack):
            setattr(self, item.name, getattr(fresh, item.name))

    def begin_phase(self, phase: PhaseId, inner_steps: int) -> None:
        """The trainers go on with this phase."""
        self.state, self.closing = TrainerState.TRAINING, None
        self.phase, self.inner_steps = phase, inner_steps
        self.inner_step = self.skipped_steps = self.extended = self.aligned = 0

    def note_step(self, step: StepDone) -> None:
        """Progress for status and for the measure of silence."""
        if step.phase == self.phase:
            self.inner_step = step.inner_step
        self.step_times.append(step.step_seconds)

    @property
    def step_seconds(self) -> float:
        """Median of the last steps; 0 before the first."""
        return statistics.median(self.step_times) if self.step_times else 0.0

    @property
    def reads_anchor(self) -> bool:
        """ANCHOR must not change now."""
        return (
            self.state is TrainerState.STARTING
            or bool(self.taking)
            or self.is_evaluating
            or (self.closing is not None and self.closing.then == "replace")
        )

    @property
    def can_take(self) -> bool:
        """A TakeAnchor makes sense now."""
        at_step = self.state in (TrainerState.TRAINING, TrainerState.DUE, TrainerState.WAITING)
        return at_step and not self.taking and not self.is_paused and not self.is_stopping

    @property
    def owes(self) -> str:
        """What we wait for from the trainers, or empty."""
        if self.state in (TrainerState.ABSENT, TrainerState.IDLE):
            return ""
        if self.is_stopping:
            return "the trainers to write their checkpoint"
        if self.taking:
            return "the trainers to take the anchor"
        if self.is_evaluating:
            return "the validation loss"
        if self.is_paused:
            return ""
        if self.state is TrainerState.STARTING:
            return "the trainers to load the model"
        if self.state is TrainerState.CLOSING:
            return "the trainers to write their pseudo-gradient"
        return "an inner step" if self.state is TrainerState.TRAINING else ""

    def silent_until(self, settings: PhaseSettings) -> Monotonic | None:
        """When silence becomes a hang; None: nothing is owed."""
        if not self.owes:
            return None
        limit = settings.silence_min_s
        if self.step_times:
            limit = max(limit, settings.silence_factor * statistics.median(self.step_times))
        if self.state is TrainerState.STARTING or self.is_stopping:
            limit = max(limit, settings.start_timeout_s)
        return Monotonic(self.last_sign + limit)
