"""What went wrong in one recovery, and with whom: why it failed, and what the round machine is to believe of whom."""

from dataclasses import dataclass, field

from dilocoxd.ids import PeerId
from dilocoxd.machines.recovery.interface.questions import Answer, AskChunk, AskFailed
from dilocoxd.machines.recovery.questions import Asked


@dataclass(slots=True)
class SourceFaults:
    """Only ever grows."""

    reasons: list[str] = field(default_factory=list)
    """Why other peers were of no use."""
    wrong_bytes: list[str] = field(default_factory=list)
    """Which source gave wrong bytes, and what was wrong with them."""
    unconfirmed: list[PeerId] = field(default_factory=list)
    """Peers whose chain is provably false, or overdue."""
    overdue: list[PeerId] = field(default_factory=list)
    """Of those: did not show it in their time."""
    unavailable: list[PeerId] = field(default_factory=list)
    """Peers that did not answer, or whose branch could not be had."""
    in_part: PeerId | None = None
    """Of those: the last one, if a part of its branch came."""
    late: dict[PeerId, str] = field(default_factory=dict)
    """Did not give what they were asked for, or not in time, and what is known of that."""
    liars: set[PeerId] = field(default_factory=set)
    """Gave a wrong chunk or made up a snapshot: no source of snapshots in this recovery any more."""

    @property
    def problems(self) -> tuple[str, ...]:
        """For the operator."""
        return tuple(self.wrong_bytes + self.reasons)

    def hear(self, asked: Asked, event: Answer) -> None:
        """An answer of a source."""
        if isinstance(event, AskFailed) and event.is_wrong:
            self.wrong_bytes.append(f"{asked.peer}: {event.reason}")
            if isinstance(asked.ask, AskChunk):
                self.liars.add(asked.peer)
        elif isinstance(event, AskFailed) and not event.is_final:
            self.late[asked.peer] = event.reason

    def made_up(self, peer: PeerId, reason: str) -> None:
        """The snapshot that it described is another state than it said."""
        self.wrong_bytes.append(f"{peer}: {reason}")
        self.liars.add(peer)

    def overtaken(self, peer: PeerId, chunk: int) -> None:
        """Another source gave this chunk before it."""
        self.late.setdefault(peer, f"chunk {chunk} came from another source first")

    def note(self, peer: PeerId, reason: str, *, is_false: bool, has_part: bool = False) -> None:
        """Nothing, or (`has_part`) nothing more, comes of this peer's chain."""
        self.in_part = peer if has_part else None
        self.reasons.append(f"{peer}: {reason}")
        (self.unconfirmed if is_false or peer in self.liars else self.unavailable).append(peer)
