"""Pairs of peers that failed with each other lately and must not be in one group (protocol/06-rounds.md, R12)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.peers.record import PEERS_MAX

CONFLICT_ROUNDS: Final = 3
"""A complaint keeps two peers out of one group for this many rounds."""


@dataclass(slots=True)
class Conflicts:
    """Pairs that failed with each other lately: (who complains, about whom) -> last round in which it counts."""

    until: dict[tuple[PeerId, PeerId], RoundIndex] = field(default_factory=dict)

    def blame(self, complains: PeerId, about: Iterable[PeerId], round_index: RoundIndex) -> None:
        """What is over stays until room is needed: a fork may take us back to a round in which it counts."""
        if len(self.until) >= PEERS_MAX:
            self.until = {pair: last for pair, last in self.until.items() if last >= round_index}
        for peer in about:
            if peer != complains and len(self.until) < PEERS_MAX:
                self.until[complains, peer] = RoundIndex(round_index + CONFLICT_ROUNDS)

    def pairs(self, round_index: RoundIndex) -> frozenset[tuple[PeerId, PeerId]]:
        """Those that still count in this round."""
        return frozenset([pair for pair, last in self.until.items() if last >= round_index])
