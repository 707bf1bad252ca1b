"""Events of the phase machine: what the driver reports and is ordered (machine.py; docs/internals.md section 2)."""

from dataclasses import dataclass

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.machines.phase.settings import SavedFeedback, StartingPoint
from dilocoxd.machines.phase.vocabulary import OuterAnswer, TrainerMessage
from dilocoxd.wire.local.outer_worker import (
    OwnedSegment,
    StateReady,
)


@dataclass(frozen=True, slots=True)
class OuterStarted:
    """The outer worker is attached and has looked into its journal."""

    state: StateReady


@dataclass(frozen=True, slots=True)
class OuterLost:
    """It died; what it was asked last is asked again when it is back."""


@dataclass(frozen=True, slots=True)
class OperationDone:
    number: int
    answer: OuterAnswer


@dataclass(frozen=True, slots=True)
class OperationRefused:
    """The outer worker answered WorkerFailed: nothing was changed."""

    number: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class TrainerConnected:
    """All ranks of this generation are attached and have said that they are ready."""

    generation: int


@dataclass(frozen=True, slots=True)
class TrainerSaid:
    generation: int
    message: TrainerMessage


@dataclass(frozen=True, slots=True)
class TrainerLost:
    generation: int


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """One entry to apply: state `round` -> `round + 1`. The entry must be durable in the log before it comes here."""

    round: RoundIndex
    lowrank_r: int
    next_inner_steps: int
    next_lowrank_r: int
    path: str = ""
    """Where the result payload lies; empty: in the RESULT buffer."""
    offset: int = 0
    settles: PhaseId | None = None
    """The offered contribution whose fate this entry decides; None: none was offered for this round."""
    is_included: bool = False
    """The entry names (our peer, `settles`)."""
    owned: tuple[OwnedSegment, ...] = ()
    """Segments that this site reduced in the committed attempt."""
    place: int = 0
    """Of our contribution among those of the entry."""
    num_contributors: int = 0
    """With those that are missing (ChainView.missed)."""


@dataclass(frozen=True, slots=True)
class EntryCommitted:
    """The daemon orders that this entry is applied."""

    order: int
    entry: CommittedEntry


@dataclass(frozen=True, slots=True)
class LoadOrdered:
    """Recovery: replace the shared state by a snapshot, or genesis."""

    order: int
    directory: str
    settles: PhaseId | None = None
    is_included: bool = False
    forgets_feedback: bool = False
    """An entry that was taken back is left: error feedback may hold what spoiled it. So may what is formed meanwhile:
    it is not offered any more, and forgotten where no entry names it."""


@dataclass(frozen=True, slots=True)
class ContributionAbandoned:
    """The round machine gave this contribution up. `is_voted`: after a vote for an entry that names it."""

    order: int
    phase: PhaseId
    is_voted: bool = False


@dataclass(frozen=True, slots=True)
class TrainingBegun:
    """Caught up for the first time."""

    order: int
    start: StartingPoint
    saved: SavedFeedback | None


@dataclass(frozen=True, slots=True)
class WorkMoved:
    """A fork took the entry with this contribution of ours out of the chain, or (withdrawn) brought it back."""

    order: int
    phase: PhaseId
    is_withdrawn: bool


@dataclass(frozen=True, slots=True)
class PauseOrdered:
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeOrdered:
    pass


@dataclass(frozen=True, slots=True)
class OthersDue:
    """When the other sites of the next group are expected to have a contribution; None: nobody is worth waiting for."""

    at: Monotonic | None
    step_seconds: tuple[float, ...] = ()
    """Times of their inner steps, where that matters (machines/phase/inner_steps.py)."""


@dataclass(frozen=True, slots=True)
class LeaveOrdered:
    pass


@dataclass(frozen=True, slots=True)
class PhaseDeadlineReached:
    pass


@dataclass(frozen=True, slots=True)
class TimeLost:
    """We ourselves stood still for so long (frozen, or starved of CPU): nobody else's silence counts in it."""

    seconds: float


PhaseEvent = (
    OuterStarted
    | OuterLost
    | OperationDone
    | OperationRefused
    | TrainerConnected
    | TrainerSaid
    | TrainerLost
    | EntryCommitted
    | LoadOrdered
    | ContributionAbandoned
    | TrainingBegun
    | WorkMoved
    | PauseOrdered
    | ResumeOrdered
    | OthersDue
    | LeaveOrdered
    | PhaseDeadlineReached
    | TimeLost
)
