"""What the exchange of segments orders: bytes to be sent, and work of the outer worker.

All of it passes through the round machine, whose driver obeys the order rules of machines/round/inputs.py.
"""

from dataclasses import dataclass

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.exchange.segments import NO_ROOT, SegmentKey
from dilocoxd.wire.local.outer_worker import Share


@dataclass(frozen=True, slots=True)
class SendSegment:
    """Stream this payload to `peer` and report SegmentSent or TransferFailed. Bytes: OUTBOX (contribution) or RESULT,
    at (pass_index, segment). The machine never orders a segment twice for one peer while a transfer of it runs."""

    peer: PeerId
    key: SegmentKey
    sha256: Digest
    lowrank_r: int = 0
    """Of the round's entry: says where its payloads lie."""
    root: Digest = NO_ROOT
    """`SegmentHeader.root`, and likewise `proof`."""
    proof: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelTransfers:
    """Stop all outgoing transfers of attempts below `attempt` (their buffers may change now); no report needed.
    Incoming ones of an older attempt end at the next `destination` query (ask per piece, or per 4 MiB)."""

    round: RoundIndex
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class OrderReduce:
    """Local `Reduce`; report Reduced or ReduceFailed. Repeat it to a restarted outer worker: it changes no feedback."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    segment: int
    peers: tuple[PeerId, ...]
    """Whose payloads the shares are, in this order."""
    shares: tuple[Share, ...]
    lowrank_r: int


@dataclass(frozen=True, slots=True)
class OrderPass:
    """Local `PreparePass`; report PassPrepared or ReduceFailed. `pass_index` = number of passes: only check, before the
    vote, that all results decode."""

    round: RoundIndex
    attempt: Attempt
    pass_index: int
    lowrank_r: int


SegmentOrder = SendSegment | CancelTransfers | OrderReduce | OrderPass
