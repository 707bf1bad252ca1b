"""What the trainers are doing, as far as their messages tell, and how long they may be silent.

Part of the phase machine (machines/phase/machine.py): keeps the facts, decides only when silence is too long.
"""

import enum
import statistics
from collections import deque
from dataclasses import dataclass, field

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.machines.phase.settings import PhaseSettings
from dilocoxd.wire.local.trainer import CloseBoundary, StepDone

STEPS_REMEMBERED = 64
PAUSE_FACTOR = 4.0
"""A hang is a silence of so many times the longest that was none: a machine with eight times too much to do is slow in
all that it does, before its first inner step too."""
NEVER = Monotonic(0.0)


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
class TrainedPhase:
    """One phase that the trainers are in: built when they go on with it, dropped with the next one or with them."""

    number: PhaseId
    inner_steps: int
    """How many it has, with extensions."""
    base_round: RoundIndex | None = None
    """Round whose copy PHASE holds as base of this phase; None while PHASE holds something else."""
    inner_step: int = 0
    skipped_steps: int = 0
    """Steps whose progress was dropped because the state was replaced."""
    extended: int = 0
    """Inner steps beyond the planned ones, for whatever reason ..."""
    aligned: int = 0
    """... and how many of them only to be ready together with the other sites."""
    boundary: int | None = None
    """Step at which its boundary is due, said by a rank before the one that reports steps has told that step."""

    def longest(self, extend_steps_max: int) -> int:
        """Inner steps that it may offer: samples are leased for no more, and no contribution may claim more."""
        return self.inner_steps - self.extended + extend_steps_max


@dataclass(frozen=True, slots=True)
class Closing:
    """How the trainers were told to close their phase, and the base of what it gives."""

    command: CloseBoundary
    base_round: RoundIndex


@dataclass(slots=True)
class Generation:
    """One life of the trainers, from their connection to their end; before the first and between two there is an empty
    one."""

    number: int = 0
    step_times: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    """Of all generations, the newest last."""
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    """Silences of all generations that ended with a sign of life while something was owed, in seconds."""
    state: TrainerState = TrainerState.ABSENT
    last_sign: Monotonic = NEVER
    phase: TrainedPhase | None = None
    """None before StartTraining."""
    closing: Closing | None = None
    """From CloseBoundary until they say that they have closed."""
    taking: str = ""
    """`replace`, `merge` or `mix` while a TakeAnchor is on its way."""
    is_evaluating: bool = False
    is_paused: bool = False
    is_stopping: bool = False
    needs_merge: bool = False
    """The last boundary was closed with `keep` and its result is not merged yet."""
    must_replace: bool = False
    """The shared state was replaced under the trainers."""

    @property
    def present_phase(self) -> TrainedPhase:
        """The phase of trainers that were told to train."""
        assert self.phase is not None, "no phase has begun"
        return self.phase

    def is_in(self, phase: PhaseId) -> bool:
        """Whether they are in this phase."""
        return self.phase is not None and self.phase.number == phase

    def begin_phase(self, phase: PhaseId, inner_steps: int) -> None:
        """The trainers go on with this phase."""
        self.state, self.closing = TrainerState.TRAINING, None
        self.phase = TrainedPhase(phase, inner_steps)

    def note_sign(self, now: Monotonic) -> None:
        """They said something: how long it took measures what silence means on this machine."""
        if self.owes:
            self.pauses.append(now - self.last_sign)
        self.last_sign = now

    def note_step(self, step: StepDone) -> None:
        """Progress for status and for the measure of silence."""
        if self.phase is not None and step.phase == self.phase.number:
            self.phase.inner_step = step.inner_step
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
            or (self.closing is not None and self.closing.command.then == "replace")
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
        if self.pauses:
            limit = max(limit, PAUSE_FACTOR * max(self.pauses))
        if self.state is TrainerState.STARTING or self.is_stopping:
            limit = max(limit, settings.start_timeout_s)
        return Monotonic(self.last_sign + limit)
