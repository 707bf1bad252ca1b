"""Local messages that pass through the phase machine: by the role of who says them and who is told."""

from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    BaseCopied,
    ContributionFormed,
    CopyBase,
    FormContribution,
    LoadState,
    RestoreSite,
    ReturnWork,
    SaveSite,
    Settle,
    Settled,
    SiteDone,
    StateReady,
    WorkReturned,
)
from dilocoxd.wire.local.trainer import (
    AnchorTaken,
    BoundaryClosed,
    BoundaryDue,
    CloseBoundary,
    Evaluate,
    Evaluated,
    Extend,
    Pause,
    Profile,
    Resume,
    StartTraining,
    StepDone,
    StopTraining,
    TakeAnchor,
    TraceBegun,
    TraceWritten,
    TrainerStopped,
)
from dilocoxd.wire.local.worker import WorkerAlive

OuterRequest = ApplyResult | LoadState | CopyBase | FormContribution | Settle | SaveSite | RestoreSite | ReturnWork

OuterAnswer = StateReady | BaseCopied | ContributionFormed | Settled | SiteDone | WorkReturned

TrainerMessage = (
    StepDone | BoundaryDue | BoundaryClosed | AnchorTaken | Evaluated | TrainerStopped | WorkerAlive
    | TraceBegun | TraceWritten
)  # fmt: skip

TrainerCommand = (
    StartTraining | Extend | CloseBoundary | TakeAnchor | Evaluate | Pause | Resume | StopTraining | Profile
)  # fmt: skip
