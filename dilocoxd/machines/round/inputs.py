"""What enters the round machine: facts that the driver reports. What leaves it: rounds/commands.py.

Order rules for the driver (protocol/06-rounds.md):
- one event at a time; the commands of one `handle` are carried out in the given order, each *finished* before the next.
  "Finished" is: `PersistPromise` is on disk (fsync); `Send`, `Broadcast`, `SendSegment` are queued; `Order...`,
  `PersistEntry` and `ApplyEntry` are handed over (their result comes later as an event).
- if `PersistPromise` fails, the rest of the batch is dropped and `StoreFailed` is reported.
- a command list may be long; the driver must not feed the next event before the list is done.
- every duplicate, late or reordered event is harmless.
"""

from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.rounds.chain import ChainView
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.messages import (
    Abandon,
    Accept,
    Committed,
    Leaving,
    Propose,
    ProposeCommit,
    Ready,
    ResultHashes,
    Vote,
)

RoundMessage = Ready | Propose | ProposeCommit | Accept | Vote | ResultHashes | Abandon | Committed | Leaving
"""The messages between daemons that this machine understands; the driver gives it nothing else."""

KIND_CONTRIBUTION: Final = 0
KIND_RESULT: Final = 1


@dataclass(frozen=True, slots=True)
class PeerView:
    """What membership believes about one other peer."""

    peer: PeerId
    is_live: bool
    """False: suspect for too long, dead or left. Messages from it still count, but nobody waits for it."""
    is_training: bool
    """It trains in this run and will contribute; observers, joiners and leaving peers do not."""
    height: RoundIndex
    head: Digest
    step_seconds: float | None = None
    """Time of one of its inner steps, as it says itself; None = unknown."""


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """One segment payload on the network."""

    kind: int
    """KIND_CONTRIBUTION or KIND_RESULT."""
    round: RoundIndex
    attempt: Attempt
    pass_index: int
    segment: int
    phase: PhaseId | None
    """Contribution: phase of the peer whose payload it is. Result: None."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where arriving bytes belong. `slot` None = RESULT buffer, else this slot of INBOX."""

    slot: int | None
    pass_index: int
    segment: int
    lowrank_r: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """These bytes are not wanted. `is_transient`: try again a little later (the proposal may be on its way);
    otherwise they are already here (`is_held`) or will never be wanted."""

    reason: str
    is_transient: bool
    is_held: bool = False


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """First event after construction: the chain in the constructor is loaded and applied (or genesis)."""


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """Membership's whole view (without ourselves). Also to be sent when only heights changed."""

    peers: tuple[PeerView, ...]
    is_training: bool = False
    """We train ourselves: as coordinator we wait for our own contribution like for that of others."""
    bandwidth: int = 0
    """Our own measured outgoing bytes/s (0 = unknown): announced, so that owners get work in proportion."""


@dataclass(frozen=True, slots=True)
class PhaseOffered:
    """Our contribution is encoded in OUTBOX and offered for the current round. One at a time: the next only after
    `SettleContribution`. It stays offered in later rounds until an entry names it or it is too old."""

    contribution: Contribution
    segment_hashes: tuple[Digest, ...]
    """sha256 of each segment payload of the first pass."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """Decoded, and from exactly this authenticated peer."""

    peer: PeerId
    message: RoundMessage


@dataclass(frozen=True, slots=True)
class SegmentReceived:
    """All bytes of a segment are stored at the place that `RoundMachine.destination` named; their hash is right."""

    peer: PeerId
    key: SegmentKey
    sha256: Digest


@dataclass(frozen=True, slots=True)
class SegmentSent:
    """The receiver acknowledged the whole segment (stored and verified, or that it has it already)."""

    peer: PeerId
    key: SegmentKey


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A segment could not be sent: refused as transient, broken stream, no progress. The machine repeats it."""

    peer: PeerId
    key: SegmentKey
    reason: str


@dataclass(frozen=True, slots=True)
class Reduced:
    """Answer to OrderReduce: the encoded result segment is in RESULT."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    segment: int
    sha256: Digest


@dataclass(frozen=True, slots=True)
class ReduceFailed:
    """Negative answer to OrderReduce (a share does not decode) or OrderPass (`segment` None; the result that does not
    decode is that of `result_segment`). `peer` None: not the fault of a share. A worker that died is no failure:
    restart it and repeat the order."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    segment: int | None
    peer: PeerId | None
    detail: str
    result_segment: int | None = None


@dataclass(frozen=True, slots=True)
class PassPrepared:
    """Answer to OrderPass: OUTBOX holds our payload of this pass."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    segment_hashes: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class EntryPersisted:
    """Answer to PersistEntry: entry, votes and payload are on disk (fsync done)."""

    round: RoundIndex


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """PersistEntry or PersistPromise failed (disk full, I/O error): we cannot keep promises any more."""

    detail: str


@dataclass(frozen=True, slots=True)
class EntryApplied:
    """Answer to ApplyEntry: the buffers hold shared state `round + 1` with this digest.

    `planned`: (next_lowrank_r, next_inner_steps) that its schedule wants in the next entry; None: as they are.
    """

    round: RoundIndex
    state_digest: Digest
    planned: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RecoveryFinished:
    """Answer to StartRecovery: this chain is on disk and applied. `settled_phase`: the phase whose contribution
    recovery settled on the way (None: our contribution in flight, if any, is still offered)."""

    chain: ChainView
    settled_phase: PhaseId | None
    broken: tuple[PeerId, ...] = ()
    """Peers that did not answer, or whose branch could not be had to its end."""
    unasked: tuple[PeerId, ...] = ()
    """Peers that were not compared any more."""


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """Answer to StartRecovery: nothing changed; the machine goes on and asks again when it sees the need."""

    reason: str
    refuted: tuple[PeerId, ...] = ()
    """Peers whose chain is provably false: claims that are not confirmed."""
    broken: tuple[PeerId, ...] = ()
    """Peers that did not answer, or whose branch could not be had to its end."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Finish or hand over the round, then say goodbye (`LeaveFinished`)."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """`next_deadline()` may have passed. Early calls are harmless."""


Event = (
    Started
    | PeersChanged
    | PhaseOffered
    | MessageReceived
    | SegmentReceived
    | SegmentSent
    | TransferFailed
    | Reduced
    | ReduceFailed
    | PassPrepared
    | EntryPersisted
    | StoreFailed
    | EntryApplied
    | RecoveryFinished
    | RecoveryFailed
    | LeaveRequested
    | DeadlineReached
)
