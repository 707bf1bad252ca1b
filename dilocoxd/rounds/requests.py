"""Questions that the recovery machine has asked: of whom, about what, until when; and the effects it has decided on."""

from collections.abc import Callable
from dataclasses import dataclass

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.rounds.recovery_events import Ask, Cancel, Effect


@dataclass(frozen=True, slots=True)
class Asked:
    """One question under way."""

    peer: PeerId
    what: str
    """For the operator: what is waited for."""
    number: int
    """Chunk, entry or round that it is about."""
    since: Monotonic
    deadline: Monotonic


class Desk:
    """What the parts of the machine write on: effects in order, questions with deadlines. `now` is set per event."""

    def __init__(self) -> None:
        self.now = Monotonic(0.0)
        self.effects: list[Effect] = []
        self.open: dict[int, Asked] = {}
        self._last = 0

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def ask(self, asked: Asked, make: Callable[[int], Ask]) -> int:
        """Put a question; its number."""
        self._last += 1
        self.open[self._last] = asked
        self.emit(make(self._last))
        return self._last

    def asked(self, peer: PeerId, what: str, number: int, patience_s: float) -> Asked:
        """A question that may take this long from now."""
        return Asked(peer, what, number, self.now, Monotonic(self.now + patience_s))

    def answered(self, request: int) -> Asked | None:
        """Its answer is here; None if nobody waits for it any more."""
        return self.open.pop(request, None)

    def cancel(self, request: int) -> None:
        if self.open.pop(request, None) is not None:
            self.emit(Cancel(request))

    def cancel_all(self) -> None:
        for request in list(self.open):
            self.cancel(request)

    def expired(self) -> list[int]:
        """Questions whose time is over."""
        return [request for request, asked in self.open.items() if self.now >= asked.deadline]

    def next_deadline(self) -> Monotonic | None:
        return min((asked.deadline for asked in self.open.values()), default=None)

    def taken(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self.effects = self.effects, []
        return effects
