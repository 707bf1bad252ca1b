"""What enters the round machine: facts that the driver reports. What leaves it: machines/round/outputs.py.

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
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.facts import (
    PassPrepared,
    Reduced,
    ReduceFailed,
    SegmentReceived,
    SegmentSent,
    TransferFailed,
)
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.wire.entry import Contribution, Signature, SignedEntry
from dilocoxd.wire.messages import (
    Abandon,
    Accept,
    Accuse,
    Committed,
    Leaving,
    Propose,
    ProposeCommit,
    Ready,
    ResultHashes,
    TakeBack,
    Vote,
)

RoundMessage = (
    Ready | Propose | ProposeCommit | Accept | Vote | ResultHashes | Abandon | Committed | Leaving | Accuse | TakeBack
)
"""The messages between daemons that this machine understands; the driver gives it nothing else."""

NEWEST_READ: Final = 8
"""Newest entries whose votes are compared after a recovery; beside these one at most, so that it costs little."""


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """First event after construction: the chain in the constructor is loaded and applied (or genesis)."""

    taken_back: tuple[TakeBack, ...] = ()
    """The newest PersistReverts of earlier lives."""


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """Membership's whole view (without ourselves). Also to be sent when only heights changed."""

    peers: tuple[PeerView, ...]
    is_training: bool = False
    """We train ourselves: as coordinator we wait for our own contribution like for that of others."""
    bandwidth: int = 0
    """Our own measured outgoing bytes/s (0 = unknown): announced, so that owners get work in proportion."""
    spoiled: tuple[RoundIndex | None, RoundIndex] | None = None
    """Rounds [first, end) of the entries of which one has spoiled our state, so that nothing can be trained from it;
    first None: unknown. None: it is sound, as far as we know."""
    is_old: bool = False
    """Membership held it before the machine began: no claim in it needs a grace (R19.7)."""


@dataclass(frozen=True, slots=True)
class PhaseOffered:
    """Our contribution is encoded in OUTBOX and offered for the current round. One at a time: the next only after
    its fate is ordered. It stays offered in later rounds until an entry names it or it is too old."""

    contribution: Contribution
    segment_hashes: tuple[Digest, ...]
    """sha256 of each segment payload of the first pass."""
    offer: Signature
    """Ours under the contribution."""
    is_misread: bool = False
    """No entry of our chain may name it: it would take other samples than the phase has read (Q4), or the site has
    given it up meanwhile, since an entry was taken back while it was formed (R29.7)."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """Decoded, and from exactly this authenticated peer."""

    peer: PeerId
    message: RoundMessage


@dataclass(frozen=True, slots=True)
class Audited:
    """Answer to OrderAudit. `culprits`: owners of results that are proved false; `why`: one sentence if there are."""

    round: RoundIndex
    attempt: Attempt
    culprits: tuple[PeerId, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class EntryFalse:
    """We have found a result of this committed entry false ourselves (X13, X14). `owners`: whose results those are, as
    far as it is certain: who reduced them by the proposal that we took up, and voted for the entry."""

    round: RoundIndex
    entry_hash: Digest
    owners: tuple[PeerId, ...] = ()


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
    unavailable: tuple[PeerId, ...] = ()
    """Peers that did not answer, or whose branch could not be had to its end."""
    unasked: tuple[PeerId, ...] = ()
    """Peers of the order, or added, that were not compared any more, or not to the end."""
    in_part: PeerId | None = None
    """Of `unavailable`: the one whose branch came in part."""
    newest: tuple[SignedEntry, ...] = ()
    """Entries of the chain whose votes are compared with those that were seen (R27): the NEWEST_READ newest, and before
    them the one at which the chain left the branch that was ours, however long ago (recovery/own_chain.py)."""
    misread: PhaseId | None = None
    """The phase of our contribution in flight, if no entry of this chain may name it (Q4)."""
    added: tuple[PeerId, ...] = ()
    """Whom an ExtendRecovery named before it was over; whom one named later was not looked at."""
    overdue: tuple[PeerId, ...] = ()
    """Did not show their branch in the time that StartRecovery gave them."""


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """Answer to StartRecovery: the chain is what it was; the machine goes on and asks again when it sees the need."""

    reason: str
    unconfirmed: tuple[PeerId, ...] = ()
    """Peers whose chain is provably false: claims that are not confirmed."""
    unavailable: tuple[PeerId, ...] = ()
    """Peers that did not answer, or whose branch could not be had to its end."""
    settled_phase: PhaseId | None = None
    """Of our contribution, if it was settled on a branch that was then left again (L15): what it did is owed."""
    overdue: tuple[PeerId, ...] = ()
    """Of `unconfirmed`: did not show their branch in the time that StartRecovery gave them."""


@dataclass(frozen=True, slots=True)
class BranchAdopted:
    """The operator wants the branch on which these peers stand (R28): recovery looks at it, whatever they claim. Said
    again until our chain has it."""

    peers: tuple[PeerId, ...]


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
    | Audited
    | EntryFalse
    | EntryPersisted
    | StoreFailed
    | EntryApplied
    | RecoveryFinished
    | RecoveryFailed
    | BranchAdopted
    | LeaveRequested
    | DeadlineReached
)
