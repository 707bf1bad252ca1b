"""What the recovery machine knows of the branch that it is taking, and of what went wrong."""

from dataclasses import dataclass, field

from dilocoxd.ids import PeerId
from dilocoxd.rounds.commands import SettleContribution
from dilocoxd.rounds.recovery import Branch
from dilocoxd.rounds.recovery_events import Answer, AskFailed, Offer
from dilocoxd.wire.entry import Entry, SignedEntry


@dataclass(slots=True)
class Taking:
    """The branch, and how far we are."""

    branch: Branch
    own: tuple[Entry, ...]
    """What we leave for it."""
    donors: list[PeerId]
    """Whom to ask for payloads, best first."""
    can_replay: bool
    """Our disk leads to the state at the fork."""
    left: list[SignedEntry]
    """Not taken yet."""
    offer: Offer | None = None
    """A snapshot that is on our disk, to be adopted."""
    to_ask: list[PeerId] = field(default_factory=list)
    """Donors of the next payload that have not been asked yet."""
    reasons: list[str] = field(default_factory=list)
    """Why the others could not give it."""
    settle: SettleContribution | None = None
    """What the step under way settles."""
    is_begun: bool = False
    """Our own branch has been left."""


@dataclass(slots=True)
class Troubles:
    """What went wrong in one recovery, and with whom."""

    reasons: list[str] = field(default_factory=list)
    """Why other peers were of no use."""
    dropped: list[str] = field(default_factory=list)
    """Sources that gave wrong bytes."""
    refuted: list[PeerId] = field(default_factory=list)
    """Peers whose chain is provably false."""
    broken: list[PeerId] = field(default_factory=list)
    """Peers that did not answer, or whose branch could not be had."""
    liars: set[PeerId] = field(default_factory=set)
    """Gave a wrong chunk."""

    def hear(self, peer: PeerId, event: Answer, *, is_chunk: bool) -> None:
        """An answer of a source."""
        if isinstance(event, AskFailed) and event.is_wrong:
            self.dropped.append(f"{peer}: {event.reason}")
            if is_chunk:
                self.liars.add(peer)

    def note(self, peer: PeerId | None, reason: str, *, is_false: bool) -> None:
        """Nothing comes of this peer's chain."""
        self.reasons.append(f"{peer}: {reason}")
        if peer is not None:
            (self.refuted if is_false or peer in self.liars else self.broken).append(peer)
