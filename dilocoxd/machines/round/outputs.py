"""Orders of the round machine to its driver; what each asks for and what the driver reports back (rounds/events.py).

Order rules: rounds/events.py, top.
"""

from dataclasses import dataclass

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.rounds.events import RoundMessage, SegmentKey
from dilocoxd.wire.entry import Contribution, Entry, SignedEntry


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver once if possible; a lost message is repeated by the machine."""

    peer: PeerId
    message: RoundMessage


@dataclass(frozen=True, slots=True)
class Broadcast:
    """To every live peer of the last PeersChanged (never to ourselves)."""

    message: RoundMessage


@dataclass(frozen=True, slots=True)
class Promise:
    """What must survive a crash: never vote in an attempt below `attempt` of `round`; `voted` is the lock."""

    round: RoundIndex
    parent: Digest
    attempt: Attempt
    voted_attempt: Attempt
    """Meaningful when `entry` is given."""
    entry: Entry | None
    voters: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class PersistPromise:
    """Write and fsync before anything after it in this batch is done. Replaces the promise before it. With an entry in
    it, the payload in RESULT should be stored too (else say `results_held=False` at the next start)."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class SendSegment:
    """Stream this payload to `peer` and report SegmentSent or TransferFailed. Bytes: OUTBOX (contribution) or RESULT,
    at (pass_index, segment). The machine never orders a segment twice for one peer while a transfer of it runs."""

    peer: PeerId
    key: SegmentKey
    sha256: Digest
    lowrank_r: int = 0
    """Of the round's entry: says where its payloads lie."""


@dataclass(frozen=True, slots=True)
class CancelTransfers:
    """Stop all outgoing transfers of attempts below `attempt` (their buffers may change now); no report needed.
    Incoming ones of an older attempt end at the next `destination` query (ask per piece, or per 4 MiB)."""

    round: RoundIndex
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class ReduceShare:
    """`slot` -1 = own OUTBOX, else INBOX slot; `tokens`, `age` (rounds since its base) and `missing` (contributors that
    the round is short of) give the weight; `peer` whose payload it is."""

    peer: PeerId
    slot: int
    tokens: int
    age: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class OrderReduce:
    """Local `Reduce`; report Reduced or ReduceFailed. Repeat it to a restarted outer worker: it changes no feedback."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    segment: int
    shares: tuple[ReduceShare, ...]
    lowrank_r: int


@dataclass(frozen=True, slots=True)
class OrderPass:
    """Local `PreparePass`; report PassPrepared or ReduceFailed. `pass_index` = number of passes: only check, before the
    vote, that all results decode."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    lowrank_r: int


@dataclass(frozen=True, slots=True)
class PersistEntry:
    """Append entry, votes and the payload in RESULT to the log, one fsync; report EntryPersisted or StoreFailed.
    The driver stamps `time`."""

    signed: SignedEntry


@dataclass(frozen=True, slots=True)
class OwnedReduction:
    """A segment that we reduced in the committed attempt."""

    pass_index: int
    segment: int
    shares: tuple[ReduceShare, ...]


@dataclass(frozen=True, slots=True)
class SettleContribution:
    """The fate of our contribution `phase`. Local `Settle`; comes before ApplyEntry of the same round."""

    phase: PhaseId
    round: RoundIndex
    is_included: bool
    owned: tuple[OwnedReduction, ...]
    is_voted: bool = False
    """Not included, but we voted for an entry that names it: a branch that we take later may have that entry."""


@dataclass(frozen=True, slots=True)
class ApplyEntry:
    """Local `ApplyEntry` from RESULT, in the worker's queue after SettleContribution; report EntryApplied."""

    round: RoundIndex
    lowrank_r: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """What recovery needs to settle our contribution when it appends entries for us (rounds/recovery.py)."""

    contribution: Contribution
    voted: Entry | None
    """The entry we are locked on; if recovery appends exactly this one, `owned` is valid and RESULT still holds it."""
    owned: tuple[OwnedReduction, ...]


@dataclass(frozen=True, slots=True)
class StartRecovery:
    """Others stand elsewhere: run rounds/recovery.py, report RecoveryFinished or RecoveryFailed. Until then this
    machine neither votes nor commits. `is_rebuild`: our bits are wrong, load a snapshot even if heads are equal."""

    peers: tuple[PeerId, ...]
    height: RoundIndex
    reason: str
    is_rebuild: bool
    in_flight: InFlight | None


@dataclass(frozen=True, slots=True)
class ReportPeer:
    """Count it against the peer (rule = name in protocol/registry.toml)."""

    peer: PeerId
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """One line of /v1/rounds. Times are the loop's clock."""

    round: RoundIndex
    num_attempts: int
    coordinator: PeerId | None
    contributions: tuple[Contribution, ...]
    is_contributor: bool
    entry_hash: Digest
    started_at: Monotonic
    gathered_at: Monotonic
    exchanged_at: Monotonic
    voted_at: Monotonic
    persisted_at: Monotonic
    applied_at: Monotonic
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """The entry is applied; the machine stands at `summary.round + 1`."""

    summary: RoundSummary


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """For counters and the event log."""

    round: RoundIndex
    attempt: Attempt
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveFinished:
    """Nothing is owed any more: close."""

    reason: str


Command = (
    Send
    | Broadcast
    | PersistPromise
    | SendSegment
    | CancelTransfers
    | OrderReduce
    | OrderPass
    | PersistEntry
    | SettleContribution
    | ApplyEntry
    | StartRecovery
    | ReportPeer
    | RoundFinished
    | AttemptFailed
    | LeaveFinished
)


# --- what the machine is built from ---


@dataclass(frozen=True, slots=True)
class KeptPromise:
    """The last Promise found on disk at start; `results_held`: RESULT holds the payload of `promise.entry` again."""

    promise: Promise
    results_held: bool
