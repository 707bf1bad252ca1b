"""Messages between the daemon and its local workers (unix socket, 0600), and the names of the shared buffers.

The daemon asks, workers answer; a worker speaks first only in `Hello`, in progress reports and when a trainer reaches
a boundary. Every buffer is a memfd created by the daemon and passed once with `Attach` (SCM_RIGHTS).
Framing on the socket: 4 bytes little-endian length, then one message of LOCAL_MESSAGES.
"""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.wire.codec import Bounds, Length, Name, Registry, Sha256, Text, Uint
from dilocoxd.wire.local_buffers import (
    ANCHOR as ANCHOR,
    FEEDBACK as FEEDBACK,
    INBOX as INBOX,
    JOURNAL as JOURNAL,
    MEMORY as MEMORY,
    MOMENTUM as MOMENTUM,
    OUTBOX as OUTBOX,
    OWNER_FEEDBACK as OWNER_FEEDBACK,
    PHASE as PHASE,
    RESULT as RESULT,
    UNDO as UNDO,
    Buffer as Buffer,
    PayloadTable as PayloadTable,
)
from dilocoxd.wire.local_trainer import (
    AnchorTaken as AnchorTaken,
    BoundaryClosed as BoundaryClosed,
    BoundaryDue as BoundaryDue,
    CloseBoundary as CloseBoundary,
    Evaluate as Evaluate,
    Evaluated as Evaluated,
    Extend as Extend,
    Pause as Pause,
    Resume as Resume,
    StartTraining as StartTraining,
    StepDone as StepDone,
    StopTraining as StopTraining,
    TakeAnchor as TakeAnchor,
    TrainerReady as TrainerReady,
    TrainerStopped as TrainerStopped,
)

LOCAL_MESSAGE_BYTES_MAX = 16 << 20

Round = Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
Phase = Annotated[PhaseId, Bounds(0, 2**63 - 1)]


# --- any worker -> daemon -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """First message of a worker. `role`: `outer` or `trainer`."""

    role: Name
    pid: Uint
    generation: Uint
    stage_rank: Uint
    num_stages: Uint


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A request could not be done and nothing changed, or the worker is about to exit. `kind` is a short code."""

    request: Uint
    kind: Name
    detail: Text


@dataclass(frozen=True, slots=True)
class WorkerAlive:
    """Sign of life about once a second from a worker that is busy: what it does and how far it is (0..1000)."""

    doing: Name
    per_mille: Uint


# --- daemon -> any worker -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Descriptors of these buffers come with this message, in this order; map them by size."""

    names: Annotated[tuple[Name, ...], Length(1, 32)]
    sizes: Annotated[tuple[Uint, ...], Length(1, 32)]


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what is being written and exit 0."""


# --- daemon <-> outer worker: requests carry a number, the answer repeats it ------------------------------------------


@dataclass(frozen=True, slots=True)
class Described:
    """Sent right after WorkerHello by the outer worker: the layout that follows from the manifest."""

    numel: Uint
    buffers: Annotated[tuple[Buffer, ...], Length(1, 32)]
    payloads: Annotated[tuple[PayloadTable, ...], Length(1, 32)]
    """One for each low rank that the run may use, ascending; without low rank a single one."""

    @property
    def payload_bytes(self) -> tuple[tuple[int, ...], ...]:
        """[pass][segment] at the largest low rank."""
        return self.payloads[-1].payload_bytes


@dataclass(frozen=True, slots=True)
class OpenState:
    """After Attach: look into the journal, finish or undo an interrupted update, say what the buffers hold."""

    request: Uint


@dataclass(frozen=True, slots=True)
class LoadState:
    """Replace the shared state: from a snapshot directory, or the genesis state when `directory` is empty."""

    request: Uint
    directory: Text


@dataclass(frozen=True, slots=True)
class StateReady:
    """Answer to OpenState, LoadState, ApplyEntry: the buffers hold shared state `round` with these digests."""

    request: Uint
    is_loaded: bool
    round: Round
    anchor_sha256: Sha256
    """sha256 of the anchor as little-endian float32 bytes."""
    state_digest: Sha256
    """sha256(anchor_sha256 + sha256(momentum bytes)): what votes certify."""
    seconds: float
    lowrank_r: Uint = 0
    """Of the next entry's payloads."""
    inner_steps: Uint = 0
    """Of phases that begin at this state."""
    next_lowrank_r: Uint = 0
    """What the next entry must announce for the one after it, and likewise `next_inner_steps`."""
    next_inner_steps: Uint = 0
    shared_steps: Uint = 0
    """Inner steps that the entries so far stand for."""


@dataclass(frozen=True, slots=True)
class ApplyEntry:
    """Outer step: state `round` -> `round + 1` with the result payload in RESULT, or in `path` at `offset`."""

    request: Uint
    round: Round
    path: Text
    """Empty: the RESULT buffer."""
    offset: Uint
    lowrank_r: Uint


@dataclass(frozen=True, slots=True)
class CopyBase:
    """The trainers have taken the anchor: PHASE <- ANCHOR (the base of the phase that now trains)."""

    request: Uint


@dataclass(frozen=True, slots=True)
class BaseCopied:
    request: Uint
    round: Round


@dataclass(frozen=True, slots=True)
class FormContribution:
    """PHASE holds u: FEEDBACK <- d = beta e + u, encode d into OUTBOX (first pass). PHASE is free afterwards."""

    request: Uint
    phase: Phase
    lowrank_r: Uint


@dataclass(frozen=True, slots=True)
class ContributionFormed:
    """`is_finite` False: NaN or Inf in `detail` (a parameter name); nothing was offered or changed."""

    request: Uint
    phase: Phase
    is_finite: bool
    detail: Text
    segment_hashes: Annotated[tuple[Sha256, ...], Length(0, 1 << 16)]
    """sha256 per segment of the first pass."""
    norm: float
    residual_norm: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Share:
    """One summand of a reduction: INBOX slot (-1 = own OUTBOX) and its weight in tokens. Given in sorted peer order."""

    slot: Annotated[int, Bounds(-1, 1 << 20)]
    tokens: Annotated[int, Bounds(1, 2**48)]
    age: Uint = 0
    """Rounds between the contribution's base and this round: late ones weigh less (outer/rounding.py: age_factor)."""
    missing: Uint = 0
    """By how many contributors this round is short of the fullest recent one (outer/rounding.py: participation); the
    same in all shares of a round."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Owner: weighted mean of these shares of one segment + owner residual -> encode -> RESULT. Changes no feedback."""

    request: Uint
    pass_index: Uint
    segment: Uint
    shares: Annotated[tuple[Share, ...], Length(1, 1024)]
    lowrank_r: Uint


@dataclass(frozen=True, slots=True)
class Reduced:
    request: Uint
    pass_index: Uint
    segment: Uint
    sha256: Sha256
    """Of the encoded result segment. WorkerFailed(kind=`bad_payload`, detail=slot) when a share does not decode."""
    seconds: float


@dataclass(frozen=True, slots=True)
class PreparePass:
    """All results of pass `pass_index - 1` are in RESULT: fill OUTBOX for this pass (low rank: R factors)."""

    request: Uint
    pass_index: Uint
    lowrank_r: Uint


@dataclass(frozen=True, slots=True)
class PassPrepared:
    request: Uint
    pass_index: Uint
    segment_hashes: Annotated[tuple[Sha256, ...], Length(0, 1 << 16)]


@dataclass(frozen=True, slots=True)
class OwnedSegment:
    """A segment that this site reduced in the committed attempt, with the shares that went in."""

    pass_index: Uint
    segment: Uint
    shares: Annotated[tuple[Share, ...], Length(1, 1024)]


@dataclass(frozen=True, slots=True)
class Settle:
    """The fate of the formed contribution is known. Included: FEEDBACK <- d - own contribution, and owner residuals of
    `owned` are recomputed from INBOX and RESULT. Not included: FEEDBACK stays d (nothing is lost)."""

    request: Uint
    phase: Phase
    round: Round
    is_included: bool
    owned: Annotated[tuple[OwnedSegment, ...], Length(0, 1 << 16)]


@dataclass(frozen=True, slots=True)
class Settled:
    request: Uint
    phase: Phase


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the shared state to `directory` (safetensors + index with hashes), in the background, atomically."""

    request: Uint
    directory: Text


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    request: Uint
    round: Round
    directory: Text
    total_bytes: Uint
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveSite:
    """Write the site's own outer state (error feedback, owner residuals) to `path`, atomically.

    `phase`: last phase settled; checked again at RestoreSite so that a stale file is never counted twice."""

    request: Uint
    path: Text
    phase: Phase
    returned: Annotated[tuple[Phase, ...], Length(0, 1 << 16)] = ()
    """Phases of which ReturnWork was done; kept in the file."""


@dataclass(frozen=True, slots=True)
class RestoreSite:
    """Load `path` if it belongs to `phase`; otherwise error feedback starts at zero (`is_restored` False)."""

    request: Uint
    path: Text
    phase: Phase


@dataclass(frozen=True, slots=True)
class SiteDone:
    """Answer to SaveSite and RestoreSite."""

    request: Uint
    is_restored: bool
    detail: Text
    returned: Annotated[tuple[Phase, ...], Length(0, 1 << 16)] = ()
    """Restored: the `returned` of the file."""


@dataclass(frozen=True, slots=True)
class ReturnWork:
    """A fork took the entry with this contribution out of the chain: FEEDBACK gets what it carried (kept in `path`,
    store/own_work.py). Withdrawn: the entry is back in the chain; FEEDBACK loses it again."""

    request: Uint
    phase: Phase
    path: Text
    is_withdrawn: bool


@dataclass(frozen=True, slots=True)
class WorkReturned:
    request: Uint
    phase: Phase


LOCAL_MESSAGES = Registry(
    {
        2: WorkerHello,
        4: WorkerFailed,
        6: WorkerAlive,
        8: Attach,
        10: Stop,
        20: Described,
        22: OpenState,
        24: LoadState,
        26: StateReady,
        28: ApplyEntry,
        30: CopyBase,
        32: BaseCopied,
        34: FormContribution,
        36: ContributionFormed,
        38: Reduce,
        40: Reduced,
        42: PreparePass,
        44: PassPrepared,
        46: Settle,
        48: Settled,
        50: WriteSnapshot,
        52: SnapshotWritten,
        54: SaveSite,
        56: RestoreSite,
        58: SiteDone,
        60: ReturnWork,
        62: WorkReturned,
        80: StartTraining,
        82: Extend,
        84: CloseBoundary,
        86: TakeAnchor,
        88: Evaluate,
        90: Pause,
        92: Resume,
        94: StopTraining,
        110: StepDone,
        112: BoundaryDue,
        114: BoundaryClosed,
        116: AnchorTaken,
        118: Evaluated,
        120: TrainerStopped,
        122: TrainerReady,
    },
    size_max=LOCAL_MESSAGE_BYTES_MAX,
)
