"""What enters and leaves the recovery machine: answers of peers and of our own site; questions and steps.

Rules for the driver (daemon/recovery/driver.py; tests/simulation/peer/recovering.py):
- effects of one `handle` are carried out in the given order;
- a question (`Ask...`) is answered once, by its event or by AskFailed, unless `Cancel` came first. Questions run at the
  same time;
- a step (`Step`) concerns our own disk and state. There is never a second one before the first is answered. When our
  own disk or worker fails, the driver gives the machine up: what is on disk is a valid chain, and the next recovery
  goes on from there;
- every late or doubled answer is harmless.
"""

from dataclasses import dataclass

from dilocoxd.machines.recovery.interface.limits import (
    RecoveryLimits,
)
from dilocoxd.machines.recovery.interface.orders import (
    CloseDownload,
    Done,
    FinalKept,
    ForgetOwn,
    PauseTrainers,
    SourceDropped,
)
from dilocoxd.machines.recovery.interface.questions import (
    Answer,
    Ask,
    AskChunk,
    AskEntries,
    AskFailed,
    AskOffer,
    AskPayload,
    AskSnapshots,
    Cancel,
    ChunkCame,
    EntriesCame,
    Offer,
    OfferCame,
    PayloadCame,
    SnapshotsListed,
)
from dilocoxd.machines.recovery.interface.status import (
    OWN_STATES,
    STATES,
    RecoveryStatus,
)
from dilocoxd.machines.recovery.interface.steps import (
    MISSING_MAX,
    Adopted,
    AdoptRefused,
    AdoptSnapshot,
    BranchChecked,
    CheckBranch,
    DownloadFinished,
    DownloadOpened,
    EntryRefused,
    EntryTaken,
    FinishDownload,
    LeaveOwn,
    OpenDownload,
    OwnLeft,
    OwnRead,
    PayloadRestored,
    ReadOwn,
    Rebuild,
    RebuildRefused,
    Rebuilt,
    RestorePayload,
    Step,
    StepDone,
    TakeEntry,
    TurnBack,
    TurnedBack,
)

__all__ = [
    "MISSING_MAX",
    "OWN_STATES",
    "STATES",
    "AdoptRefused",
    "AdoptSnapshot",
    "Adopted",
    "Answer",
    "Ask",
    "AskChunk",
    "AskEntries",
    "AskFailed",
    "AskOffer",
    "AskPayload",
    "AskSnapshots",
    "BranchChecked",
    "Cancel",
    "CheckBranch",
    "ChunkCame",
    "CloseDownload",
    "Done",
    "DownloadFinished",
    "DownloadOpened",
    "Effect",
    "EntriesCame",
    "EntryRefused",
    "EntryTaken",
    "FinalKept",
    "FinishDownload",
    "ForgetOwn",
    "LeaveOwn",
    "Offer",
    "OfferCame",
    "OpenDownload",
    "OwnLeft",
    "OwnRead",
    "PauseTrainers",
    "PayloadCame",
    "PayloadRestored",
    "ReadOwn",
    "Rebuild",
    "RebuildRefused",
    "Rebuilt",
    "RecoveryEvent",
    "RecoveryLimits",
    "RecoveryStatus",
    "RestorePayload",
    "SnapshotsListed",
    "SourceDropped",
    "Step",
    "StepDone",
    "TakeEntry",
    "Tick",
    "TurnBack",
    "TurnedBack",
]


@dataclass(frozen=True, slots=True)
class Tick:
    """`next_deadline` has passed (too early or too late is harmless)."""


Effect = Ask | Cancel | Step | PauseTrainers | CloseDownload | ForgetOwn | SourceDropped | FinalKept | Done
RecoveryEvent = Answer | StepDone | Tick
