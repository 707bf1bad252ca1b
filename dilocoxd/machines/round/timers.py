"""Every time-out of the round machine by name: from which moment it counts, what ends it, how long it is.

Moments are noted in `Timers`, one for each lifetime (process, height, attempt), and dropped with it. After a lag all of
them move together (R18). The table is the one of protocol/06-rounds.md, and a test holds the two together.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.limits import RoundLimits

READIES_HEARD: Final = 2
"""Everybody gets the time to say Ready so often before it counts that nobody else was heard."""
LAG_S: Final = 1.0
"""Woken later than this after a deadline: we were not running. To read what came meanwhile may take as long again."""


class Mark(StrEnum):
    """A moment from which time-outs count."""

    PROCESS = "the process starts"
    LEAVE = "the operator asks to leave"
    CONTRIBUTION = "the first contribution of the round of a peer that is not left out is announced"
    ATTEMPT = "an attempt is entered"
    PROPOSAL = "a proposal arrives"
    POSSIBLE = "a group or a finished lock is possible"
    LEFT_OUT = "a proposal without us is seen"
    PROGRESS = "anything moves in the exchange"
    FEW_OWE = "most others are done with us, and few are not"
    VOTED_ON = "there is an entry to be voted on"
    DISPUTE = "votes differ"


@dataclass(frozen=True, slots=True)
class Timer:
    """One row. `mark` None: its moment is kept where it counts (`place`), because there is one for each item."""

    name: str
    mark: Mark | None
    length: Callable[[RoundLimits], float] | None
    """None: the length is measured or grows."""
    place: str = ""
    is_moved: bool = True
    """Whether it ends later after a lag: at its end somebody is blamed, left out or no longer waited for."""

    def seconds(self, limits: RoundLimits) -> float:
        """How long it is. Not for those whose length is measured or grows."""
        assert self.length is not None, f"{self.name} has no fixed length"
        return self.length(limits)


REPEAT: Final = Timer("repeat", None, lambda of: of.ready_repeat_s, "machine.py", is_moved=False)
GRACE: Final = Timer("grace", Mark.CONTRIBUTION, None)
JOINING: Final = Timer("joining", Mark.ATTEMPT, lambda of: of.progress_timeout_s)
ARRIVING: Final = Timer("arriving", Mark.ATTEMPT, lambda of: of.grace_min_s)
HEARD: Final = Timer("heard", Mark.PROCESS, lambda of: of.progress_timeout_s)
ACQUAINTED: Final = Timer("acquainted", Mark.PROCESS, lambda of: READIES_HEARD * of.ready_repeat_s)
OTHER_CANDIDATE: Final = Timer("other candidate", Mark.PROPOSAL, lambda of: of.coordinator_patience_s / 2)
COORDINATOR: Final = Timer("coordinator", Mark.POSSIBLE, lambda of: of.coordinator_patience_s)
UNANSWERED_LOCK: Final = Timer("unanswered lock", Mark.ATTEMPT, lambda of: of.progress_timeout_s)
LEFT_OUT: Final = Timer("left out", Mark.LEFT_OUT, lambda of: of.progress_timeout_s + of.vote_timeout_s)
PROGRESS: Final = Timer("progress", Mark.PROGRESS, lambda of: of.progress_timeout_s)
PROGRESS_OF_RESULTS: Final = Timer("progress of results", Mark.PROGRESS, lambda of: of.progress_timeout_s * 1.5)
FEW_OWE: Final = Timer("few owe", Mark.FEW_OWE, None)
LEFT_BEHIND: Final = Timer("left behind", Mark.PROGRESS, lambda of: of.progress_timeout_s / 4)
TRANSFER: Final = Timer("transfer", None, lambda of: of.transfer_retry_s, "exchange.py", is_moved=False)
VOTE: Final = Timer("vote", Mark.VOTED_ON, lambda of: of.vote_timeout_s)
DISPUTE: Final = Timer("dispute", Mark.DISPUTE, lambda of: of.vote_timeout_s / 2)
BEHIND: Final = Timer("behind", None, lambda of: of.behind_grace_s, "tips.py")
RECOVERY_PAUSE: Final = Timer("recovery pause", None, lambda of: of.recovery_retry_s, "tips.py", is_moved=False)
IGNORED: Final = Timer("ignored", None, None, "tips.py", is_moved=False)
LEAVE: Final = Timer("leave", Mark.LEAVE, lambda of: of.leave_timeout_s)

TIMERS: Final = (
    REPEAT, GRACE, JOINING, ARRIVING, HEARD, ACQUAINTED, OTHER_CANDIDATE, COORDINATOR, UNANSWERED_LOCK, LEFT_OUT,
    PROGRESS, PROGRESS_OF_RESULTS, FEW_OWE, LEFT_BEHIND, TRANSFER, VOTE, DISPUTE, BEHIND, RECOVERY_PAUSE, IGNORED,
    LEAVE,
)  # fmt: skip


class Timers:
    """The moments of one lifetime. A moment that was not noted, or was dropped, has no time-outs."""

    def __init__(self) -> None:
        self._since: dict[tuple[Mark, PeerId | None], Monotonic] = {}

    def start(self, mark: Mark, now: Monotonic, peer: PeerId | None = None) -> None:
        """Note the moment, unless it is noted already."""
        self._since.setdefault((mark, peer), now)

    def restart(self, mark: Mark, now: Monotonic) -> None:
        """The moment is now, whatever was noted before."""
        self._since[mark, None] = now

    def stop(self, mark: Mark, peer: PeerId | None = None) -> None:
        """Forget the moment."""
        self._since.pop((mark, peer), None)

    def move(self, seconds: float) -> None:
        """We were not running for so long: everything counts from that much later."""
        self._since = {key: Monotonic(since + seconds) for key, since in self._since.items()}

    def since(self, mark: Mark, peer: PeerId | None = None) -> Monotonic | None:
        return self._since.get((mark, peer))

    def first(self, mark: Mark, without: Set[PeerId]) -> Monotonic | None:
        """The earliest moment that was noted for a peer that is not among these."""
        return earliest(*[at for (one, peer), at in self._since.items() if one == mark and peer not in without])

    def is_running(self, mark: Mark) -> bool:
        return (mark, None) in self._since

    def end(self, timer: Timer, limits: RoundLimits, peer: PeerId | None = None) -> Monotonic:
        """When this one is over. KeyError if its moment is not noted (our bug)."""
        assert timer.mark is not None, f"{timer.name} is not counted here"
        return Monotonic(self._since[timer.mark, peer] + timer.seconds(limits))


def earliest(*times: Monotonic | None) -> Monotonic | None:
    """The first of those that there are."""
    first: Monotonic | None = None
    for one in times:
        if one is not None and (first is None or one < first):
            first = one
    return first
