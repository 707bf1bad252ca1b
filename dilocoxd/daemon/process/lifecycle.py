"""What the daemon as a whole is doing, and what that waits for."""

from typing import Final

from dilocoxd.answers.fields import DaemonState

SAID: Final = ("catching_up", "preparing", "training", "paused", "leaving")
"""States that others hear of as they are."""


class Lifecycle:
    """One state and one sentence."""

    def __init__(self) -> None:
        self._entered: DaemonState = "starting"
        self.waiting_for = "the run directory to be opened"
        self.is_gone = False
        """The next heartbeat is the last one."""
        self.is_paused = False
        """By the operator; others do not wait for us meanwhile."""
        self.evicted = ""
        """Not empty: this site is no member of the run any more, and this sentence says so."""
        self.follows = ""
        """Not empty: this site trains nothing as long as it is a member by this invite, and this sentence says so."""

    def enter(self, state: DaemonState, waiting_for: str = "") -> None:
        """The daemon is in `state` now; `waiting_for` is empty when it waits for nothing itself."""
        self._entered = state
        self.waiting_for = waiting_for

    @property
    def is_held(self) -> bool:
        """The trainers stand still, by the operator or by the invite; others do not wait for us."""
        return self.is_paused or bool(self.follows)

    @property
    def state(self) -> DaemonState:
        """What the daemon does now."""
        if self.evicted and self._entered in ("joining", "catching_up", "preparing", "training"):
            return "paused"
        return "paused" if self.is_held and self._entered in ("preparing", "training") else self._entered

    @property
    def record_state(self) -> str:
        """The same in the words of a heartbeat record."""
        if self.is_gone:
            return "left"
        return self.state if self.state in SAID else "joining"
