"""Which false results that others tell of are worth a look, and in what order (rule X14).

A look costs the shares of one segment and a sum or two, so who tells of one that is sound is not heard for a long time,
and who tells without showing for a while that doubles. What was proved here is not looked at again. Pure.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.chain import RECENT_ENTRIES

TELLERS_MAX: Final = 64
"""Peers of which one claim each waits."""
SILENCED_MAX: Final = 1024
SILENCED_ROUNDS: Final = 64
"""So many rounds whoever showed nothing false is not heard."""
PROVED_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Accusation:
    """What a peer tells."""

    teller: PeerId
    round: RoundIndex
    entry_hash: Digest
    segment: int


class Claims:
    """Of one site. `owner` everywhere: who made the result, as far as this site knows; empty if it does not."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[PeerId, Accusation] = OrderedDict()
        self._proved: OrderedDict[tuple[Digest, str], None] = OrderedDict()
        self._silenced: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()
        """Below which height, and after how many claims in vain."""

    def hear(self, claim: Accusation, owner: str, height: int) -> bool:
        """Whether it waits for its turn now. `height`: of the own chain, which holds this very entry."""
        is_near = height - RECENT_ENTRIES <= claim.round < height
        if not is_near or self.is_proved(claim.entry_hash, owner) or claim.teller in self._waiting:
            return False
        if self._silenced.get(claim.teller, (0, 0))[0] > height or len(self._waiting) >= TELLERS_MAX:
            return False
        self._waiting[claim.teller] = claim
        return True

    def next(self) -> Accusation | None:
        """The one that waits longest; it waits no more."""
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def is_proved(self, entry_hash: Digest, owner: str) -> bool:
        """Whether a result of this owner in this entry was found false here. One is enough."""
        return (entry_hash, owner) in self._proved

    def proved(self, entry_hash: Digest, owner: str) -> None:
        """It was, just now."""
        self._proved[entry_hash, owner] = None
        while len(self._proved) > PROVED_MAX:
            self._proved.popitem(last=False)

    def in_vain(self, teller: PeerId, height: int, *, is_refuted: bool) -> None:
        """Its claim led to nothing: what it showed proves nothing (`is_refuted`), or it showed nothing in time."""
        times = self._silenced.pop(teller, (0, 0))[1] + 1
        rounds = SILENCED_ROUNDS if is_refuted else min(SILENCED_ROUNDS, 1 << min(times, 6))
        self._silenced[teller] = height + rounds, times
        while len(self._silenced) > SILENCED_MAX:
            self._silenced.popitem(last=False)
