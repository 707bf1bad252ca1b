"""Pairs of peers that failed with each other lately and must not be in one group (protocol/06-rounds.md, R12)."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.peers.record import PEERS_MAX

FIRST: Final = Attempt(0)
CONFLICT_ROUNDS: Final = 3
"""A complaint keeps two peers out of one group for this many rounds."""


@dataclass(slots=True)
class Conflicts:
    """Pairs that failed with each other lately: (who complains, about whom) -> last round in which it counts."""

    until: dict[tuple[PeerId, PeerId], RoundIndex] = field(default_factory=dict)

    spans: dict[tuple[PeerId, PeerId], tuple[RoundIndex, Attempt, Attempt]] = field(default_factory=dict)
    """The same pairs -> newest round with a complaint, the first and the last attempt of it that had one."""

    def blame(
        self, complains: PeerId, about: Iterable[PeerId], round_index: RoundIndex, attempt: Attempt = FIRST
    ) -> None:
        """What is over stays until room is needed: a fork may take us back to a round in which it counts."""
        if len(self.until) >= PEERS_MAX:
            self.until = {pair: last for pair, last in self.until.items() if last >= round_index}
            self.spans = {pair: span for pair, span in self.spans.items() if pair in self.until}
        for peer in about:
            if peer != complains and len(self.until) < PEERS_MAX:
                self.until[complains, peer] = RoundIndex(round_index + CONFLICT_ROUNDS)
                of_round, first, last = self.spans.get((complains, peer), (round_index, attempt, attempt))
                is_new = of_round != round_index
                span = (attempt, attempt) if is_new else (min(first, attempt), max(last, attempt))
                self.spans[complains, peer] = (round_index, *span)

    def pairs(self, round_index: RoundIndex) -> frozenset[tuple[PeerId, PeerId]]:
        """Those that still count in this round."""
        return frozenset([pair for pair, last in self.until.items() if last >= round_index])

    def at_fault(self, me: PeerId, among: Set[PeerId], round_index: RoundIndex) -> frozenset[PeerId]:
        """Whom of these we blame ourselves; if that is everybody else, only those whom we blame in two attempts of one
        round: the fault may be ours."""
        own = [pair for pair, last in self.until.items() if pair[0] == me and last >= round_index]
        blamed = {about for _, about in own} & among
        if not among - blamed - {me}:
            blamed &= {pair[1] for pair in own if self.spans[pair][1] < self.spans[pair][2]}
        return frozenset(blamed)

    def repeated(self, round_index: RoundIndex) -> frozenset[tuple[PeerId, PeerId]]:
        """Those with complaints in two attempts of this round: one alone may be about a crash that is over."""
        of_round = {pair: span for pair, (number, *span) in self.spans.items() if number == round_index}
        return frozenset([pair for pair, (first, last) in of_round.items() if first < last])
