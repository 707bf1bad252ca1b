"""Which kept contributions the error feedback must get or lose, so that all work of this site counts once (R-b).

What a contribution brings is its *content*: the work of its own phase, and of earlier phases that the error feedback
still had when it was formed. Nothing is booked. The chain delivers the contents of our contributions in it, FEEDBACK
holds what it was given, and what no entry has belongs into FEEDBACK. The difference is made good from kept work
(store/kept_work.py), newest first: a content never has work of a later phase, so there is only one way.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase.settings import SavedFeedback

Content = Mapping[PhaseId, int]
"""How often the work of each phase is in something: 1, but for work that two branches had (-1 makes it good)."""


class OwedWork:
    """What is delivered, what is kept, what FEEDBACK holds; and from these three, what is owed."""

    def __init__(self) -> None:
        self.chain: set[PhaseId] = set()
        """Our contributions that the chain has."""
        self.kept: dict[PhaseId, Content] = {}
        """Whose work is kept, with its content."""
        self.feedback: Counter[PhaseId] = Counter()
        """Whose work FEEDBACK holds."""
        self.saved: SavedFeedback | None = None
        """The feedback file, if it can ever be restored."""
        self._left: set[PhaseId] = set()
        """What left the chain in this life of the daemon."""

    def begin(self, chain: Iterable[PhaseId], kept: Mapping[PhaseId, Content]) -> None:
        """What chain and disk say once we have caught up; FEEDBACK holds nothing yet."""
        self.chain, self.kept = set(chain), dict(kept)

    def deliver(self, phase: PhaseId, content: Content) -> None:
        """An entry with our contribution was committed, and we voted for it."""
        self.chain.add(phase)
        self.kept[phase] = content

    def move(self, phase: PhaseId, *, is_withdrawn: bool) -> bool:
        """A fork took a contribution out of the chain, or (withdrawn) brought it back. False: known already."""
        is_news = phase not in (self.chain if is_withdrawn else self._left)
        gains, loses = (self.chain, self._left) if is_withdrawn else (self._left, self.chain)
        gains.add(phase)
        loses.discard(phase)
        return is_news

    def add(self, content: Content, times: int) -> None:
        """FEEDBACK gets (or, with -1, loses) a content."""
        for phase, count in content.items():
            self.feedback[phase] += times * count
            if not self.feedback[phase]:
                del self.feedback[phase]

    def difference(self, feedback: Content) -> dict[PhaseId, int]:
        """How often the kept work of each phase must be added to a FEEDBACK with this content."""
        owed: Counter[PhaseId] = Counter()
        for phase in {*feedback, *(item for content in self.kept.values() for item in content)}:
            owed[phase] = 1 - feedback.get(phase, 0) - (phase in self.chain and phase not in self.kept)
        for phase in self.chain & self.kept.keys():
            owed.subtract(self.kept[phase])
        found = {}
        for phase in sorted(self.kept, reverse=True):
            times = owed[phase]
            if times:
                found[phase] = times
                for item, count in self.kept[phase].items():
                    owed[item] -= times * count
        return found

    def needed(self, feedbacks: Iterable[Content]) -> frozenset[PhaseId]:
        """Kept work that a FEEDBACK with one of these contents has to get or to lose."""
        return frozenset(phase for content in feedbacks for phase in self.difference(content))
