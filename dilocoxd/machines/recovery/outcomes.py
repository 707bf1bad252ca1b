"""What the parts of a recovery find. Only the machine acts on it (machines/recovery/machine.py).

A part returns a step that our own site must carry out next (interface.steps.Step), or one of these. No part changes
another, none emits an effect, none knows the state of the machine.
"""

from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.finality import Place
from dilocoxd.machines.recovery.interface.orders import FinalKept
from dilocoxd.machines.recovery.interface.questions import Ask, Offer
from dilocoxd.machines.recovery.interface.steps import Step
from dilocoxd.wire.entry import Entry, SignedEntry

UNNUMBERED = 0
"""Request number of a question that has not been put yet."""


@dataclass(frozen=True, slots=True)
class Question:
    """To be put to a peer. `num_bytes` of the largest answer set its deadline; `ask.request` is UNNUMBERED."""

    ask: Ask
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Asking:
    """Answers are waited for: those that are on their way, and those to `questions`."""

    questions: tuple[Question, ...] = ()
    superseded: frozenset[tuple[PeerId, int]] = frozenset()
    """Questions about a chunk (source, number) whose answer does not matter any more."""


@dataclass(frozen=True, slots=True)
class NotBetter:
    """The peer's chain was compared: there is nothing in it that we want. Or (not `is_compared`) not to its end yet."""

    is_compared: bool = True


@dataclass(frozen=True, slots=True)
class Kept:
    """The peer's branch is better and acceptable, but leaves final entries of ours."""

    found: FinalKept


@dataclass(frozen=True, slots=True)
class Better:
    """The peer's branch is better than ours and acceptable."""

    peer: PeerId
    branch: Branch
    own: tuple[Entry, ...]
    """Our entries from the fork on, to be left for it."""
    can_replay: bool
    """Our disk leads to the state at the fork."""
    adopted: Place | None = None
    """Better because it leads to this place, which the operator has chosen."""
    reverted: frozenset[Digest] = frozenset()
    """Of `own`, those that were taken back (R29)."""
    missing: tuple[SignedEntry, ...] = ()
    """Entries of ours below the fork: with their payloads our disk leads to the state there."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The whole branch is in our log and applied."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing, or nothing more, comes of the peer's chain. `is_false`: it is provably not a chain of this run."""

    reason: str
    is_false: bool = False
    made_up_by: tuple[PeerId, ...] = ()
    """Who described the snapshot on which it failed, if that is not what they said."""


@dataclass(frozen=True, slots=True)
class SnapshotFound:
    """Whole, on our disk, as `sources` described it."""

    offer: Offer
    sources: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class NoSnapshot:
    """`problem` is empty when nobody has one that the branch certifies; else why it could not be had."""

    problem: str = ""


Outcome = Step | Asking | NotBetter | Kept | Better | Complete | Failed
SearchOutcome = Step | Asking | SnapshotFound | NoSnapshot
