"""What a look at the round, or at something that came in, leads to. Parts return these; machine.py acts on them.

Nothing else changes the machine's state. Order rules of the commands: machines/round/inputs.py.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from dilocoxd.ids import Attempt, Monotonic, PeerId
from dilocoxd.machines.round.locks import HeldLock
from dilocoxd.machines.round.outputs import Command
from dilocoxd.wire.entry import SignedVote
from dilocoxd.wire.messages import Propose, ProposeCommit, TakeBack

STARTING: Final = "starting"
GATHERING: Final = "gathering"
EXCHANGING: Final = "exchanging"
VOTING: Final = "voting"
COMMITTING: Final = "committing"
APPLYING: Final = "applying"
CATCHING_UP: Final = "catching_up"
FAILED: Final = "failed"
LEFT: Final = "left"
OVER: Final = (FAILED, LEFT)
OPEN: Final = (GATHERING, EXCHANGING, VOTING)
LISTENING: Final = (*OPEN, CATCHING_UP)
"""What others say of their attempts is noted."""
AT_WORK: Final = (EXCHANGING, VOTING)


class Waiting(NamedTuple):
    """Nothing changes yet. `until`: look again then; None: only an event can change anything. A named tuple, for every
    event makes several, and those cost a third of a frozen dataclass."""

    reason: str
    until: Monotonic | None = None
    orders: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """Something was heard, and this is answered."""

    orders: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """A message broke a rule of the protocol (name in protocol/registry.toml); it has no other effect."""

    peer: PeerId
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Join:
    """Others are in this later attempt: go there (R5)."""

    attempt: Attempt
    proposal: tuple[PeerId, Propose | ProposeCommit] | None = None
    """By whom and how it was shown, to be considered there."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give up the attempt (R12). `is_told` False: others gave it up first; Ready says enough, and we must not look like
    the cause."""

    reason: str
    blames: tuple[PeerId, ...] = ()
    is_told: bool = True
    orders: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeUp:
    """Exchange as this proposal says (R7, R8)."""

    coordinator: PeerId
    propose: Propose
    orders: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class VoteOn:
    """Wait for the voters of this entry, and vote if we are one of them (R9, R13)."""

    voted_on: HeldLock
    orders: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Everybody has voted for this entry, and those that had to accept it have (R10)."""

    held: HeldLock
    votes: tuple[SignedVote, ...]
    orders: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Recover:
    """Others stand elsewhere, or our bits are wrong (R19, R23): compare the chains."""

    reason: str
    is_rebuild: bool = False
    orders: tuple[Command, ...] = ()
    peers: tuple[PeerId, ...] = ()
    """Whom to ask besides those who claim something."""
    takes_back: TakeBack | None = None
    """First of all leave this entry (R29)."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is owed any more, or the time for that is over (R17)."""


Outcome = Waiting | Told | Violation | Join | GiveUp | TakeUp | VoteOn | Commit | Recover | Leave
