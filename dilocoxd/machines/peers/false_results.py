"""Entries of which this site has itself found a result false, and who is certain to have made it.

What others say of it is checked before it comes here. Source: protocol/06-rounds.md, R29; protocol/07-exchange.md, X14.
"""

from collections.abc import Iterable
from typing import Final

from dilocoxd.ids import Digest, PeerId, RoundIndex

ENTRIES_MAX: Final = 64
LIARS_MAX: Final = 64
LEFT_OUT_ROUNDS: Final = 64
"""So many rounds after a false result this site puts its owner into no group; as many as who voted twice (R27)."""


class FalseResults:
    """As long as the process lives."""

    def __init__(self) -> None:
        self.entries: dict[Digest, RoundIndex] = {}
        """By hash."""
        self._until: dict[PeerId, RoundIndex] = {}
        """Last round that leaves a liar out."""

    def add(self, digest: Digest, number: RoundIndex, owners: Iterable[PeerId]) -> None:
        """One more, or more of one that is known."""
        self.entries[digest] = number
        while len(self.entries) > ENTRIES_MAX:
            del self.entries[next(iter(self.entries))]
        for peer in owners:
            self._until[peer] = max(RoundIndex(number + LEFT_OUT_ROUNDS), self._until.get(peer, number))
        while len(self._until) > LIARS_MAX:
            del self._until[min(self._until, key=lambda peer: self._until[peer])]

    def liars(self, round_index: RoundIndex) -> list[PeerId]:
        """Whom this round leaves out, sorted."""
        if not self._until:
            return []  # as a rule: this is asked at every event
        return sorted(peer for peer, last in self._until.items() if round_index <= last)
