"""Messages between the daemon and the trainers. registry.py numbers them."""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.wire.codec import Bounds, Length, Lines, Name, Uint

Round = Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
Phase = Annotated[PhaseId, Bounds(0, 2**63 - 1)]
UNKNOWN = -1.0
"""Of a figure that is never negative, and that nobody measured."""
NOT_FINITE = 1e30
"""Told as a loss instead of NaN or an infinity, which the codec refuses; what is as large is no loss either."""

RANKS_MAX: Final = 4096
SAMPLE_RANGES_MAX: Final = 4096
Samples = Annotated[tuple[Uint, ...], Length(0, 2 * SAMPLE_RANGES_MAX)]
"""What a phase reads: start, stop, start, stop, ... of samples of the run's token stores; empty without any."""


# --- daemon -> trainer (stage rank 0 gets commands; it passes them on to the other ranks) -----------------------------


@dataclass(frozen=True, slots=True)
class StartTraining:
    """Load the anchor into the model, restore the inner optimizer if a checkpoint fits, then train `phase`."""

    phase: Phase
    round: Round
    inner_steps: Uint
    checkpoint_directory: Lines
    shared_steps: Uint = 0
    """The run's place on the learning rate's cosine at this anchor."""
    samples: Samples = ()
    volume: Uint = 0
    """Of the token stores, in which these samples are."""


@dataclass(frozen=True, slots=True)
class Extend:
    """Answer to BoundaryDue: train this many further inner steps first (the entry is late)."""

    inner_steps: Uint


@dataclass(frozen=True, slots=True)
class CloseBoundary:
    """Answer to BoundaryDue: PHASE -= params; then, as `then` says, take the anchor (`replace`), keep going with own
    parameters (`keep`), or stop and wait for TakeAnchor (`wait`); then train `next_phase` for `inner_steps`."""

    then: Name
    round: Round
    next_phase: Phase
    inner_steps: Uint
    shared_steps: Uint = 0
    num_contributors: Uint = 0
    """Of the newest entry, with those it was short of; 0: not known. Says how much of the mean was ours (eager)."""
    samples: Samples = ()
    """Of `next_phase`."""
    volume: Uint = 0


@dataclass(frozen=True, slots=True)
class TakeAnchor:
    """At the next inner-step boundary: `replace`: params <- anchor; `merge`: params <- anchor + (params - params at
    the last closed boundary); `mix`: params <- params + (anchor - anchor taken before), but what entry `mixed_round`
    exchanged is mixed: params <- alpha params + (1 - alpha) anchor."""

    round: Round
    how: Name
    shared_steps: Uint = 0
    mixed_round: Round | None = None
    """The entry with our contribution, if it is among those that made this anchor."""
    samples: Samples = ()
    """With `replace`: what the phase reads from here on; what it has read so far is dropped with what it learned."""
    volume: Uint = 0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """At the next inner-step boundary: validation loss of the shared anchor (own parameters come back afterwards)."""

    round: Round


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop at the next inner-step boundary until Resume."""


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class StopTraining:
    """Write the checkpoint at the next inner-step boundary, answer TrainerStopped, exit 0."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Record the next `steps` inner steps with torch's profiler; every rank answers TraceWritten, once."""

    steps: Uint
    folder: Lines
    """Begin of the folder's path, which ends with `-step` and the global number of the first step."""


# --- trainer -> daemon ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """From stage rank 0, once: all ranks have model, data and shared buffers, and wait for StartTraining."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Of the places along a pipeline: what each computes in a step, and a cut of the layers that would be faster."""

    seconds: Annotated[tuple[float, ...], Length(0, RANKS_MAX)]
    """Median over the newest steps, mean over the ranks of a place."""
    layers: Annotated[tuple[Uint, ...], Length(0, RANKS_MAX)]
    """Of each slice of the model; empty: none would save much."""
    saves: float
    """Part of a step; UNKNOWN without `layers`."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """After every inner step, from the last stage."""

    phase: Phase
    inner_step: Uint
    """1-based inside the phase."""
    global_step: Uint
    loss: float
    """`NOT_FINITE`: no number."""
    tokens: Uint
    step_seconds: float
    idle_seconds: float
    """Total seconds since start of this generation in which the trainer wanted to train but waited for the daemon."""
    learning_rate: float = UNKNOWN
    """Of this step's update."""
    gradient_norm: float = UNKNOWN
    """Over all stages, before clipping; unknown too when it was not finite."""
    skipped_steps: Uint = 0
    """Steps of this generation so far that changed nothing, because a gradient was not finite."""
    rank_memory_bytes: Annotated[tuple[Uint, ...], Length(0, RANKS_MAX)] = ()
    """Of each rank: the most that its GPU held, or what its process holds; empty: as told before."""
    data_seconds: float = UNKNOWN
    """What of the step the rank that reads slowest took to read its batch."""
    bubble: float = UNKNOWN
    """Part of the step behind that, up to the optimizer, in which ranks of a pipeline waited for each other, mean over
    all; unknown without a pipeline."""
    stages: StageTimes | None = None
    """Not known: no pipeline, or not enough steps yet."""


@dataclass(frozen=True, slots=True)
class BoundaryDue:
    """`inner_steps` of this phase are done; the trainer waits for Extend or CloseBoundary (idle time counts)."""

    phase: Phase
    inner_steps: Uint


@dataclass(frozen=True, slots=True)
class BoundaryClosed:
    """All ranks have turned PHASE into u = base - params."""

    phase: Phase
    inner_steps: Uint
    tokens: Uint
    mean_loss: float
    """Of the steps with a finite loss; NOT_FINITE if there was none."""
    took_anchor: bool
    """True: `then` was `replace`, and all ranks hold the anchor `round` now."""
    round: Round


@dataclass(frozen=True, slots=True)
class AnchorTaken:
    """All ranks have taken the anchor (start, replace or merge)."""

    round: Round
    how: Name
    phase: Phase
    inner_step: Uint


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """Mean loss on what one source of the run holds out."""

    name: Name
    loss: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What one contribution to the entry before this state did to the loss, in the segments that are summed here."""

    place: Uint
    """Among those of the entry."""
    added: float
    """Loss with it less loss without it, nats per token: above 0 it did harm."""
    deviation: float
    """Standard error of `added` over the batches; 0 of a single one."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    round: Round
    validation_loss: float
    """Over all sources, each as much as it has targets; UNKNOWN from a loop of somebody's own that measures none."""
    seconds: float
    by_source: tuple[SourceLoss, ...] = ()
    """Of a run on token stores."""
    left_out: Annotated[tuple[LeftOut, ...], Length(0, 1)] = ()
    num_losses: Uint = 0
    """Losses of batches that a loop of somebody's own told; 0 from any other trainer, and where they are of other
    batches each time, so that nothing can be compared."""


@dataclass(frozen=True, slots=True)
class TrainerStopped:
    phase: Phase
    inner_step: Uint


@dataclass(frozen=True, slots=True)
class TraceBegun:
    """From stage rank 0: the profile that was asked for begins with this inner step (the global number)."""

    first_step: Uint


@dataclass(frozen=True, slots=True)
class TraceWritten:
    """From every rank: its file lies in the folder, or `problem` says why there is none; nothing is recorded now."""

    stage_rank: Uint
    first_step: Uint
    steps: Uint
    """That were recorded; fewer than asked for if a pause came first."""
    size_bytes: Uint
    problem: Lines = ""
