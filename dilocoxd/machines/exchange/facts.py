"""What the exchange of segments is told: what happened to bytes, and what the outer worker answers.

All of it passes through the round machine, whose driver obeys the order rules of machines/round/inputs.py.
"""

from dataclasses import dataclass

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.exchange.segments import NO_ROOT, SegmentKey


@dataclass(frozen=True, slots=True)
class SegmentMoved:
    """Something happened to a segment on its way; `peer`: from or to whom."""

    peer: PeerId
    key: SegmentKey

    @property
    def round(self) -> RoundIndex:
        return self.key.round

    @property
    def attempt(self) -> Attempt:
        return self.key.attempt


@dataclass(frozen=True, slots=True)
class SegmentReceived(SegmentMoved):
    """All bytes of a segment are stored at the place that `RoundMachine.destination` named; their hash is right."""

    sha256: Digest
    root: Digest = NO_ROOT
    """What its header names; that the segment is under it was checked (`Destination.takes`)."""


@dataclass(frozen=True, slots=True)
class SegmentSent(SegmentMoved):
    """The receiver acknowledged the whole segment (stored and verified, or that it has it already)."""


@dataclass(frozen=True, slots=True)
class TransferFailed(SegmentMoved):
    """A segment could not be sent: refused as transient, broken stream, no progress. The machine repeats it."""

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


SegmentFact = SegmentReceived | SegmentSent | TransferFailed | Reduced | ReduceFailed | PassPrepared
