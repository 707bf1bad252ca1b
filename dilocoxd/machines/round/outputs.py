"""Orders of the round machine to its driver; what each asks for and what the driver reports back (inputs.py).

Order rules: machines/round/inputs.py, top.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce, SendSegment
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import Contribution, Entry, Evidence, Signature, SignedEntry
from dilocoxd.wire.local.outer_worker import OwnedSegment
from dilocoxd.wire.messages import TakeBack


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
    offers: tuple[Signature, ...]
    """Under its contributions: who commits it after a restart must show them."""


@dataclass(frozen=True, slots=True)
class PersistPromise:
    """Write and fsync before anything after it in this batch is done. Replaces the promise before it. With an entry in
    it, the payload in RESULT should be stored too (else say `results_held=False` at the next start)."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class PersistReverts:
    """Write and fsync before anything after it in this batch is done. Replaces those before it (R29)."""

    taken_back: tuple[TakeBack, ...]


@dataclass(frozen=True, slots=True)
class OrderAudit:
    """Before a vote (X13): keep our work for this entry, then check some of its results in bounded time; report
    Audited."""

    round: RoundIndex
    attempt: Attempt
    entry: Entry
    offers: tuple[Signature, ...]
    owners: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class PersistEntry:
    """Append entry, offers, votes and the payload in RESULT to the log, one fsync; report EntryPersisted or
    StoreFailed."""

    signed: SignedEntry


@dataclass(frozen=True, slots=True)
class AbandonContribution:
    """No entry will name our contribution of this phase: local `Settle`, not included."""

    phase: PhaseId
    is_voted: bool
    """We voted for an entry that names it: a branch that we take later may have that entry."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """An entry names our contribution in flight, which is settled with it: local `Settle`, included."""

    phase: PhaseId
    owned: tuple[OwnedSegment, ...]
    """What we reduced for the entry, as far as RESULT and INBOX still hold it."""


@dataclass(frozen=True, slots=True)
class ApplyEntry:
    """Local `Settle`, if the entry settles ours, then `ApplyResult` from RESULT; report EntryApplied."""

    round: RoundIndex
    lowrank_r: int
    settle: Settlement | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """What recovery needs to settle our contribution when it appends entries for us (machines/recovery/rollback.py)."""

    contribution: Contribution
    voted: Entry | None
    """The entry we are locked on; if recovery appends exactly this one, `owned` is valid and RESULT still holds it."""
    owned: tuple[OwnedSegment, ...]


@dataclass(frozen=True, slots=True)
class StartRecovery:
    """Others stand elsewhere: run the recovery machine, report RecoveryFinished or RecoveryFailed. Until then this
    machine neither votes nor commits. `is_rebuild`: our bits are wrong, load a snapshot even if heads are equal."""

    peers: tuple[PeerId, ...]
    height: RoundIndex
    reason: str
    is_rebuild: bool
    in_flight: InFlight | None
    takes_back: RoundIndex | None = None
    """First of all leave our chain from this entry on, which a majority has taken back (R29)."""
    reverted: frozenset[Digest] = frozenset()
    """Entries that were taken back: no branch with one of them is taken."""
    patience_s: Mapping[PeerId, float] = field(default_factory=dict)
    """How long each of these peers may take to show its branch, while it is asked, seconds (R22.6); others: as long as
    they like."""


@dataclass(frozen=True, slots=True)
class ExtendRecovery:
    """The recovery under way may ask these, too: they have claimed something since it began (R22.7). Its end says whom
    it still could."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class ReportPeer:
    """Count it against the peer (rule = name in protocol/registry.toml)."""

    peer: PeerId
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class DoubleVoteFound:
    """Tell the operator: this proves that a peer, perhaps we ourselves, voted twice in one attempt (R27). Said once."""

    evidence: Evidence


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
    owners: tuple[PeerId, ...] = ()
    """Who reduced each segment of the entry, in the exchange that made it; empty: we took no part in that."""


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
    | PersistReverts
    | SendSegment
    | CancelTransfers
    | OrderReduce
    | OrderPass
    | OrderAudit
    | PersistEntry
    | AbandonContribution
    | ApplyEntry
    | StartRecovery
    | ExtendRecovery
    | ReportPeer
    | DoubleVoteFound
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


class RoundStatus(NamedTuple):
    """What /v1/status shows of the round."""

    state: str
    round: RoundIndex
    attempt: Attempt
    coordinator: PeerId | None
    group: tuple[PeerId, ...]
    observers: tuple[PeerId, ...]
    waiting_for: str
    unconfirmed: frozenset[PeerId]
    """Stand on a chain that recovery could not take, as far as we know."""
    first_attempt: int = 0
    """Where those of this round begin: entries of it may have been taken back (R29)."""
