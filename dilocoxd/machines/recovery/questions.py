"""The questions that a recovery has open: of whom, about what, until when. Request numbers are given out here."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery.interface.questions import Ask, AskChunk, AskEntries, AskOffer, AskPayload, AskSnapshots

LAG_S = 1.0
"""Woken later than this after a deadline: we were not running. To read what came meanwhile may take as long again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question under way."""

    ask: Ask
    since: Monotonic
    deadline: Monotonic
    patience_s: float
    """Between the two, but for the time in which we were not running."""

    def took_s(self, now: Monotonic) -> float:
        """How long it has been under way while we were running."""
        return self.patience_s - (self.deadline - now)

    @property
    def peer(self) -> PeerId:
        return self.ask.peer

    @property
    def what(self) -> str:
        """For the operator: what is waited for."""
        match self.ask:
            case AskEntries():
                return "its entries"
            case AskSnapshots():
                return "its list of snapshots"
            case AskOffer():
                return "its snapshot's index"
            case AskChunk():
                return "a chunk"
            case AskPayload(_, _, signed):
                return f"payload {signed.entry.round}"


class OpenQuestions:
    """By request number, in the order in which they were put."""

    def __init__(self) -> None:
        self.open: dict[int, Asked] = {}
        self._last = 0

    def put(self, ask: Ask, now: Monotonic, patience_s: float) -> Ask:
        """The question with its number; it may take this long from now."""
        self._last += 1
        numbered = replace(ask, request=self._last)
        self.open[self._last] = Asked(numbered, now, Monotonic(now + patience_s), patience_s)
        return numbered

    def answered(self, request: int) -> Asked | None:
        """Its answer is here; None if nobody waits for it any more."""
        return self.open.pop(request, None)

    def withdraw(self, is_moot: Callable[[Ask], bool]) -> tuple[int, ...]:
        """No answer to these matters any more; their request numbers."""
        found = tuple(request for request, asked in self.open.items() if is_moot(asked.ask))
        for request in found:
            del self.open[request]
        return found

    def woken(self, now: Monotonic, due_at: Monotonic | None) -> float:
        """An event comes. If we were not running when we wanted to be woken, answers may be here, unread (R18): all
        time-outs move by so many seconds, those of others too."""
        lag = now - due_at if due_at is not None else 0.0
        if lag < LAG_S:
            return 0.0
        later = lag + LAG_S
        self.open = {n: replace(a, deadline=Monotonic(a.deadline + later)) for n, a in self.open.items()}
        return later

    def expired(self, now: Monotonic) -> list[int]:
        """Questions whose time is over."""
        return [request for request, asked in self.open.items() if now >= asked.deadline]

    def next_deadline(self) -> Monotonic | None:
        return min((asked.deadline for asked in self.open.values()), default=None)
