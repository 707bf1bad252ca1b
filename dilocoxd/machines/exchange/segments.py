"""Segment payloads by their names: which one it is, where its bytes belong, why they are refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Attempt, Digest, PhaseId, RoundIndex
from dilocoxd.wire.merkle import is_under

KIND_CONTRIBUTION: Final = 0
KIND_RESULT: Final = 1
NO_ROOT: Final = Digest(b"")
"""Nobody asks what it is part of."""


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
    """Where arriving bytes belong, and what they must be part of. `slot` None = RESULT buffer, else this slot of
    INBOX."""

    slot: int | None
    pass_index: int
    segment: int
    lowrank_r: int = 0
    root: Digest | None = None
    """What their header must name; None: nothing of this pass has come from their sender yet."""
    num_segments: int = 1

    def takes(self, sha256: bytes, root: bytes, proof: Sequence[bytes]) -> bool:
        """Whether a segment with this hash may be stored: its root is the one that its sender is bound to, and a
        contribution's segment is under it (X10)."""
        if self.root is not None and root != self.root:
            return False
        return self.slot is None or is_under(root, sha256, self.segment, self.num_segments, proof)


@dataclass(frozen=True, slots=True)
class Refusal:
    """These bytes are not wanted. `is_transient`: try again a little later (the proposal may be on its way);
    otherwise they are already here (`is_held`) or will never be wanted."""

    reason: str
    is_transient: bool
    is_held: bool = False
