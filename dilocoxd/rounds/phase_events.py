"""Events, commands and settings of the site's phase machine (rounds/phases.py; docs/internals.md section 2)."""

from dataclasses import dataclass, field
from typing import Literal

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.wire.local import (
    AnchorTaken,
    ApplyEntry,
    BaseCopied,
    BoundaryClosed,
    BoundaryDue,
    CloseBoundary,
    ContributionFormed,
    CopyBase,
    Evaluate,
    Evaluated,
    Extend,
    FormContribution,
    LoadState,
    OwnedSegment,
    Pause,
    RestoreSite,
    Resume,
    ReturnWork,
    SaveSite,
    Settle,
    Settled,
    SiteDone,
    StartTraining,
    StateReady,
    StepDone,
    StopTraining,
    TakeAnchor,
    TrainerStopped,
    WorkerAlive,
    WorkReturned,
)

Delay = Literal["none", "phase", "eager", "arrival", "streaming"]
OuterRequest = ApplyEntry | LoadState | CopyBase | FormContribution | Settle | SaveSite | RestoreSite | ReturnWork
OuterAnswer = StateReady | BaseCopied | ContributionFormed | Settled | SiteDone | WorkReturned
TrainerMessage = (
    StepDone | BoundaryDue | BoundaryClosed | AnchorTaken | Evaluated | TrainerStopped | WorkerAlive
)  # fmt: skip
TrainerCommand = StartTraining | Extend | CloseBoundary | TakeAnchor | Evaluate | Pause | Resume | StopTraining


@dataclass(frozen=True, slots=True)
class PhaseSettings:
    """What the manifest and site.toml say. Steps are inner steps, times are seconds."""

    delay: Delay
    inner_steps: int
    extend_steps_max: int
    evaluate_every_rounds: int
    lowrank_r: int = 0
    save_every_rounds: int = 1
    site_steps_min: int = 0
    """Fewest inner steps if this site is slower than the others; 0: it does as many as they."""
    checkpoint_directory: str = ""
    feedback_path: str = ""
    own_work_directory: str = ""
    start_timeout_s: float = 300.0
    silence_factor: float = 20.0
    silence_min_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SiteRecord:
    """What must survive a crash of the daemon (site.json), or a number or a residual could be counted twice."""

    phases_reserved: int = 0
    """Numbers below this may have been used."""
    last_settled: PhaseId | None = None
    saved_phase: PhaseId | None = None
    """Last settled phase when the error feedback on disk was written ..."""
    saved_in_flight: PhaseId | None = None
    """... and the contribution that was in flight then; its payload is in the file too."""
    formed_phase: PhaseId | None = None
    """Last contribution that was offered ..."""
    formed_round: RoundIndex | None = None
    """... and the height at which that happened."""
    returned: tuple[tuple[PhaseId, PhaseId], ...] = ()
    """Contributions that left the chain with a fork, or were given up after our vote, and belong into the error
    feedback, each with the first phase whose contribution could carry it on."""
    formed_with: tuple[PhaseId, ...] = ()
    """Those that the error feedback had when `formed_phase` was formed."""
    carried_by: PhaseId | None = None
    """Newest contribution that an entry named, or that is owed as a whole ..."""
    carried: tuple[PhaseId, ...] = ()
    """... and those of `returned` that it took along."""


# --- events -----------------------------------------------------------------------------------------------------------


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
class EntryCommitted:
    """Durable in the log. `settles`: the offered contribution whose fate it decides."""

    order: int
    round: RoundIndex
    lowrank_r: int
    next_inner_steps: int
    next_lowrank_r: int
    path: str = ""
    offset: int = 0
    settles: PhaseId | None = None
    is_included: bool = False
    owned: tuple[OwnedSegment, ...] = ()
    num_contributors: int = 0


@dataclass(frozen=True, slots=True)
class LoadOrdered:
    """Recovery: replace the shared state by a snapshot, or genesis."""

    order: int
    directory: str
    settles: PhaseId | None = None
    is_included: bool = False


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
    height: RoundIndex
    newest_own_phase: PhaseId | None
    own_phases: frozenset[PhaseId] = frozenset()
    """All of ours in the chain."""
    kept_phases: frozenset[PhaseId] = frozenset()
    """Those whose work is kept: we voted for entries that name them, or meant to."""


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
    """Times of their inner steps, where that matters (rounds/site_steps.py)."""


@dataclass(frozen=True, slots=True)
class LeaveOrdered:
    pass


@dataclass(frozen=True, slots=True)
class DeadlineReached:
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
    | DeadlineReached
    | TimeLost
)

# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOuter:
    """Send this request; `number` = its request number. The same number may be sent again after OuterStarted."""

    number: int
    request: OuterRequest


@dataclass(frozen=True, slots=True)
class TellTrainer:
    message: TrainerCommand


@dataclass(frozen=True, slots=True)
class PersistRecord:
    """Durable (fsync) before the next command is carried out."""

    record: SiteRecord


@dataclass(frozen=True, slots=True)
class OfferContribution:
    phase: PhaseId
    base_round: RoundIndex
    inner_steps: int
    tokens: int
    lowrank_r: int
    formed: ContributionFormed


@dataclass(frozen=True, slots=True)
class DropContribution:
    """This phase offers nothing."""

    phase: PhaseId
    reason: str


@dataclass(frozen=True, slots=True)
class FinishOrder:
    """What was ordered with this number is done."""

    order: int
    answer: OuterAnswer | None


@dataclass(frozen=True, slots=True)
class RefuseOrder:
    order: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class RestartTrainer:
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class FailSite:
    """Nothing that a restart could mend."""

    reason: str


@dataclass(frozen=True, slots=True)
class FinishLeaving:
    """Nothing is left to be done or saved; the workers may be stopped."""


PhaseCommand = (
    RunOuter
    | TellTrainer
    | PersistRecord
    | OfferContribution
    | DropContribution
    | FinishOrder
    | RefuseOrder
    | RestartTrainer
    | FailSite
    | FinishLeaving
)


@dataclass(slots=True)
class Flight:
    """The one contribution on its way: closed by the trainers, formed, offered, settled."""

    phase: PhaseId
    base_round: RoundIndex
    inner_steps: int
    tokens: int
    lowrank_r: int
    stage: Literal["forming", "offered", "settling"] = "forming"
    is_returned: bool = False
    """Given up after our vote: once it is settled, FEEDBACK has it like work that a fork dropped."""
    orders: list[int] = field(default_factory=list)
    """Orders that end when it is settled."""
