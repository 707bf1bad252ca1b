"""Orders of a recovery that nobody answers; the last one tells what came of it."""

from dataclasses import dataclass

from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.wire.entry import Entry


@dataclass(frozen=True, slots=True)
class PauseTrainers:
    """Several states will follow each other."""

    reason: str


@dataclass(frozen=True, slots=True)
class CloseDownload:
    """No more chunks for now; what is there stays."""


@dataclass(frozen=True, slots=True)
class ForgetOwn:
    """The better branch is complete: drop the records that were set aside."""


@dataclass(frozen=True, slots=True)
class SourceDropped:
    """It gave a wrong chunk or made up a snapshot: it is counted and named."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class FinalKept:
    """A better branch, sound as far as its votes tell, is not taken: it leaves final entries of ours (R28)."""

    peer: PeerId
    branch: Branch
    own: tuple[Entry, ...]
    """Our entries from the fork on, ..."""
    num_final: int
    """... of which so many, the oldest, are final."""


@dataclass(frozen=True, slots=True)
class Done:
    """The last effect. `failure` is empty when at least one peer was compared, or our head moved."""

    failure: str
    settled: PhaseId | None
    unconfirmed: tuple[PeerId, ...] = ()
    """Peers whose chain is provably false: malformed, not acceptable, on states that never were, wrong chunks, or
    a snapshot that was made up."""
    unavailable: tuple[PeerId, ...] = ()
    """Peers that did not answer, or whose branch could not be had to its end."""
    unasked: tuple[PeerId, ...] = ()
    """Not compared, or not to the end: our head had moved, or nobody of the order was left (R22.7)."""
    in_part: PeerId | None = None
    """Of `unavailable`: the one whose branch came in part."""
    added: tuple[PeerId, ...] = ()
    """Who was added in time (R22.7)."""
    overdue: tuple[PeerId, ...] = ()
    """Of `unconfirmed`: not shown in its time (R22.6)."""
