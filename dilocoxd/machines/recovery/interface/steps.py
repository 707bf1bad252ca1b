"""Steps of a recovery on our own disk and state, one at a time, and how each ended."""

from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Digest
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.interface.questions import Offer
from dilocoxd.machines.round.outputs import InFlight, Settlement
from dilocoxd.wire.entry import Entry, SignedEntry

MISSING_MAX: Final = 16
"""So many payloads below a fork are asked of others at most (L11.3)."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The state of our log from snapshots and log; Rebuilt.

    `has_way_back`: our own branch was left for it. RebuildRefused if it fails: payloads of others (RestorePayload) may
    lead to no state, for entries that a snapshot skipped here were never applied.
    """

    has_way_back: bool = False


@dataclass(frozen=True, slots=True)
class ReadOwn:
    """Our entries from `fork` on, and whether our disk leads to the state there; OwnRead."""

    fork: int


@dataclass(frozen=True, slots=True)
class CheckBranch:
    """`branch.check_branch`, which takes long for many votes; BranchChecked."""

    branch: Branch
    base: ChainView
    is_adopted: bool = False
    """The operator has chosen it: it need not lead to the checkpoint of the join link."""


@dataclass(frozen=True, slots=True)
class RestorePayload:
    """The payload that `request` brought into our log again, behind this entry of our own; PayloadRestored."""

    signed: SignedEntry
    request: int


@dataclass(frozen=True, slots=True)
class LeaveOwn:
    """Kept work first, then our records aside, then the log cut at the fork; OwnLeft."""

    branch: Branch
    own: tuple[Entry, ...]
    in_flight: InFlight | None
    """Here and below: our contribution that is not settled yet, for our kept work."""
    is_adopted: bool = False
    """The operator has chosen `branch`: it may be the lighter one."""
    reverted: frozenset[Digest] = frozenset()
    """Entries of `own` that were taken back (R29). What we gave to the first of them and to what follows, what is in
    flight, and the error feedback are forgotten: one of them may hold what spoiled the model. With an empty `branch`
    nothing is set aside: there is no way back."""


@dataclass(frozen=True, slots=True)
class OpenDownload:
    """Place for this snapshot; DownloadOpened names the chunks that are there from an earlier try."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class FinishDownload:
    """All chunks are there: make them durable, beside our own snapshots; DownloadFinished."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class AdoptSnapshot:
    """Load it instead of replaying `skipped`, which go into the log without payloads; Adopted or AdoptRefused.

    It takes its place among our own snapshots only once it has proved right.
    """

    offer: Offer
    certified_by: Entry
    skipped: tuple[SignedEntry, ...]
    settle: Settlement | None
    """One of `skipped` names our contribution in flight. To be settled only once the state has proved right."""
    in_flight: InFlight | None


@dataclass(frozen=True, slots=True)
class TakeEntry:
    """Entry and the payload that `request` brought into the log, then applied; EntryTaken, or EntryRefused when it does
    not decode (then it is out of the log again)."""

    signed: SignedEntry
    request: int
    settle: Settlement | None
    in_flight: InFlight | None


@dataclass(frozen=True, slots=True)
class TurnBack:
    """The branch is false or cannot be had. `is_kept`: what was taken of it is better than ours anyway, or leads to
    where the operator wants to be, and stays. Otherwise the log is cut at the fork and our records are put back. Books,
    state, records aside; TurnedBack."""

    fork: int
    taken: tuple[SignedEntry, ...]
    own: tuple[Entry, ...]
    is_kept: bool
    in_flight: InFlight | None


Step = (
    Rebuild
    | ReadOwn
    | CheckBranch
    | RestorePayload
    | LeaveOwn
    | OpenDownload
    | FinishDownload
    | AdoptSnapshot
    | TakeEntry
    | TurnBack
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    state_digest: Digest


@dataclass(frozen=True, slots=True)
class RebuildRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class OwnRead:
    entries: tuple[Entry, ...]
    can_replay: bool
    base: ChainView
    """View of our chain below the fork."""
    num_final: int = 0
    """So many of `entries`, the oldest ones, are final (finality.num_final)."""
    missing: tuple[SignedEntry, ...] = ()
    """Entries below the fork whose payloads would make the state there; none if they are more than MISSING_MAX."""


@dataclass(frozen=True, slots=True)
class BranchChecked:
    problem: str


@dataclass(frozen=True, slots=True)
class PayloadRestored:
    pass


@dataclass(frozen=True, slots=True)
class OwnLeft:
    pass


@dataclass(frozen=True, slots=True)
class DownloadOpened:
    present: frozenset[int]


@dataclass(frozen=True, slots=True)
class DownloadFinished:
    pass


@dataclass(frozen=True, slots=True)
class Adopted:
    pass


@dataclass(frozen=True, slots=True)
class AdoptRefused:
    """`is_false`: the files are what the index describes, and not what it says they are: whoever gave it made it up."""

    reason: str
    is_false: bool = False


@dataclass(frozen=True, slots=True)
class EntryTaken:
    state_digest: Digest


@dataclass(frozen=True, slots=True)
class EntryRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class TurnedBack:
    state_digest: Digest


StepDone = (
    Rebuilt
    | RebuildRefused
    | OwnRead
    | BranchChecked
    | PayloadRestored
    | OwnLeft
    | DownloadOpened
    | DownloadFinished
    | Adopted
    | AdoptRefused
    | EntryTaken
    | EntryRefused
    | TurnedBack
)
