"""Messages between the daemon and the outer worker: requests carry a number, the answer repeats it."""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.wire.codec import Bounds, Length, Lines, Sha256, Uint
from dilocoxd.wire.entry import RAMP_WHOLE
from dilocoxd.wire.local.buffers import Buffer, PayloadTable
from dilocoxd.wire.local.figures import Figures

SKETCH_NUMBERS = 64
"""Of a sketch: sums of a share's values with signs, so that cosines of sketches are about those of shares."""

Round = Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
DIFFERING_MAX: Final = 16
"""Segments that one answer names."""
Phase = Annotated[PhaseId, Bounds(0, 2**63 - 1)]


@dataclass(frozen=True, slots=True)
class Described:
    """Sent right after WorkerHello by the outer worker: the layout that follows from the manifest."""

    numel: Uint
    buffers: Annotated[tuple[Buffer, ...], Length(1, 32)]
    payloads: Annotated[tuple[PayloadTable, ...], Length(1, 32)]
    """One for each low rank that the run may use, ascending; without low rank a single one."""
    record_bytes: Uint = 0
    """Of the record at the end of each payload of the last pass (outer/clipping.py)."""
    center_start: Uint = 0
    """Where in MEMORY the results lie that shares are compared with; 0: nothing is."""
    segments: Annotated[tuple[Uint, ...], Length(0, 1 << 16)] = ()
    """Values of each."""

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
    directory: Lines
    forgets_feedback: bool = False
    """OWNER_FEEDBACK is zero afterwards, and FEEDBACK if nothing is in flight: they may hold what rounding left of what
    spoiled the model."""
    is_check: bool = False
    """Of a part: only say whether it could be done (wire/local/outer_parts.py)."""


@dataclass(frozen=True, slots=True)
class ClippedShare:
    """What the results of an entry say of one contribution that was not counted whole."""

    place: Uint
    """Of the contribution among those of the entry."""
    num_segments: Uint
    """In which it was clipped."""
    norms: float
    """How many median norms it had in the worst of them; 0 if its size was nowhere the reason."""
    dropped: float = 0.0
    """Part of all segments in which nothing of it was counted, because it pointed against the others."""


def joined(left: ClippedShare, right: ClippedShare, num_segments: int) -> ClippedShare:
    """What two sets of segments, of `num_segments` in all, say of the contribution at one place."""
    num_dropped = round(left.dropped * num_segments) + round(right.dropped * num_segments)
    norms = max(left.norms, right.norms)
    return ClippedShare(left.place, left.num_segments + right.num_segments, norms, num_dropped / num_segments)


@dataclass(frozen=True, slots=True)
class StateReady:
    """Answer to OpenState, LoadState, ApplyResult: the buffers hold shared state `round` with these digests."""

    request: Uint
    is_loaded: bool
    round: Round
    anchor_sha256: Sha256
    """Root over the segments of the anchor alone (wire/state_digest.py)."""
    state_digest: Sha256
    """Root over all segments: what votes certify."""
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
    clipped: Annotated[tuple[ClippedShare, ...], Length(0, 1024)] = ()
    """Of the entry that ApplyResult applied."""
    differing: Annotated[tuple[Uint, ...], Length(0, DIFFERING_MAX)] = ()
    """Segments whose bits were other ones in the state of this number that was held before it was loaded anew."""
    num_differing: Uint = 0
    """How many these are, also beyond those that are named."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """Outer step: state `round` -> `round + 1` with the result payload in RESULT, or in `path` at `offset`."""

    request: Uint
    round: Round
    path: Lines
    """Empty: the RESULT buffer."""
    offset: Uint
    lowrank_r: Uint
    is_check: bool = False


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
    is_check: bool = False


@dataclass(frozen=True, slots=True)
class ContributionFormed:
    """`is_finite` False: NaN or Inf in `detail` (a parameter name); nothing was offered or changed."""

    request: Uint
    phase: Phase
    is_finite: bool
    detail: Lines
    segment_hashes: Annotated[tuple[Sha256, ...], Length(0, 1 << 16)]
    """sha256 per segment of the first pass."""
    norm: float
    residual_norm: float
    seconds: float
    figures: Figures = b""
    """From one of several parts: the squares of its segments, in their order. Its norms are of these alone."""


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
    ramp: Annotated[int, Bounds(1, RAMP_WHOLE)] = RAMP_WHOLE
    """Part of its weight that counts, in 64ths: less of who is on probation (`Entry.ramps`)."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Owner: weighted mean of these shares of one segment + owner residual -> encode -> RESULT. Changes no feedback."""

    request: Uint
    pass_index: Uint
    segment: Uint
    shares: Annotated[tuple[Share, ...], Length(1, 1024)]
    lowrank_r: Uint


@dataclass(frozen=True, slots=True)
class SegmentReduced:
    request: Uint
    pass_index: Uint
    segment: Uint
    sha256: Sha256
    """Of the encoded result segment. WorkerFailed(kind=`bad_payload`, detail=slot) when a share does not decode."""
    seconds: float
    sketches: Annotated[bytes, Length(0, 1 << 18)] = b""
    """Last pass: a sketch of each share, SKETCH_NUMBERS little-endian fp32 numbers; empty where none was made."""


@dataclass(frozen=True, slots=True)
class ReduceAgain:
    """Sum the segment of an audit's folder again (store/audits.py). Changes nothing."""

    request: Uint
    directory: Lines


@dataclass(frozen=True, slots=True)
class ReducedAgain:
    request: Uint
    sha256: Sha256
    """Of the result that follows from the shares. WorkerFailed(kind=`bad_payload`, detail=place) when a share does not
    decode: then none does."""
    seconds: float


@dataclass(frozen=True, slots=True)
class PreparePass:
    """All results of pass `pass_index - 1` are in RESULT: fill OUTBOX for this pass (low rank: R factors)."""

    request: Uint
    pass_index: Uint
    lowrank_r: Uint


@dataclass(frozen=True, slots=True)
class PassReady:
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
    place: Uint = 0
    """Of our contribution among those of the entry: where the results' records say how much of it was counted."""
    path: Lines = ""
    """Where the entry's results lie, at `offset`; empty: in RESULT."""
    offset: Uint = 0
    lowrank_r: Uint = 0
    """Of the entry, where its results lie in a file."""
    kept_path: Lines = ""
    """Not empty: the entry's results are not at hand; what was counted is said by our kept work, if it is there."""
    without: Annotated[tuple[Uint, ...], Length(0, 1)] = ()
    """Place of the contribution that LEFT_OUT takes out of the entry again; empty: of none."""
    forgets: bool = False
    """Where it is not included FEEDBACK <- 0: it was formed before an entry was taken back (R29.7)."""


@dataclass(frozen=True, slots=True)
class Settled:
    request: Uint
    phase: Phase


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the shared state to `directory` (safetensors + index with hashes), in the background, atomically."""

    request: Uint
    directory: Lines


@dataclass(frozen=True, slots=True)
class SnapshotSaved:
    request: Uint
    round: Round
    directory: Lines
    total_bytes: Uint
    seconds: float


@dataclass(frozen=True, slots=True)
class ContentItem:
    """How often the work of one phase is in something (machines/phase/owed_work.py); once, as a rule."""

    phase: Phase
    times: Annotated[int, Bounds(-(2**31), 2**31)]


@dataclass(frozen=True, slots=True)
class SaveSite:
    """Write the site's own outer state (error feedback, owner residuals) to `path`, atomically.

    `phase`: last phase settled; checked again at RestoreSite so that a stale file is never counted twice."""

    request: Uint
    path: Lines
    phase: Phase
    content: Annotated[tuple[ContentItem, ...], Length(0, 1 << 16)] = ()
    """Whose work FEEDBACK holds; noted in the file."""


@dataclass(frozen=True, slots=True)
class RestoreSite:
    """Load `path` if it belongs to `phase`; otherwise error feedback starts at zero (`is_restored` False).

    `phase` in flight when it was saved: an entry has it, and FEEDBACK loses what was counted. That is said by our kept
    work, else by the entry's results; by neither: all of it was.
    """

    request: Uint
    path: Lines
    phase: Phase
    kept_path: Lines = ""
    """Of the work that we kept of `phase`, for this entry or, where nothing else tells, another attempt; or empty."""
    results_path: Lines = ""
    """Where the entry's results lie, at `offset`; empty: nowhere."""
    offset: Uint = 0
    lowrank_r: Uint = 0
    """Of the entry."""
    place: Uint = 0
    """Of our contribution among those of the entry."""


@dataclass(frozen=True, slots=True)
class SiteDone:
    """Answer to SaveSite and RestoreSite."""

    request: Uint
    is_restored: bool
    detail: Lines
    missing: Uint = 0
    """Values of error feedback here that no file has, and that start at zero therefore."""


@dataclass(frozen=True, slots=True)
class ReturnWork:
    """A fork took the entry with this contribution out of the chain: FEEDBACK gets its content (kept in `path`,
    store/kept_work.py). Withdrawn: the entry is back in the chain; FEEDBACK loses it again."""

    request: Uint
    phase: Phase
    path: Lines
    is_withdrawn: bool
    operation: Uint = 0
    """Numbers what is ordered, also when it is asked again of a worker that was restarted: it is done once."""
    is_check: bool = False


@dataclass(frozen=True, slots=True)
class WorkReturned:
    request: Uint
    phase: Phase
