"""Which false results that others tell of are worth a look, and in what order (rule X14).

A look costs the shares of one segment and a sum or two, so who tells of one that is sound is not heard for a long time,
and who tells without showing for a while that doubles. Ids may cost nothing, so those without a part in the entry have
few looks together, after all others. What was proved here is not looked at again. Pure.
"""

from collections import OrderedDict, deque
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
STRANGERS_IN_VAIN_MAX: Final = 4
"""Looks at what strangers tell that may be in vain in RECENT_ENTRIES heights."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """What a peer tells."""

    teller: PeerId
    round: RoundIndex
    entry_hash: Digest
    segment: int
    is_known: bool = False
    """The teller contributed to the entry, and was not on probation. Else it is a stranger."""


class Claims:
    """Of one site. `owner` everywhere: who made the result, as far as this site knows; empty if it does not."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[PeerId, Accusation] = OrderedDict()
        self._proved: OrderedDict[tuple[Digest, str], None] = OrderedDict()
        self._silenced: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()
        """Below which height, and after how many claims in vain."""
        self._strangers: deque[int] = deque(maxlen=STRANGERS_IN_VAIN_MAX)
        """Heights at which the newest of theirs were in vain."""

    def hear(self, claim: Accusation, owner: str, height: int) -> bool:
        """Whether it waits for its turn now. `height`: of the own chain, which holds this very entry."""
        is_near = height - RECENT_ENTRIES <= claim.round < height
        if not is_near or self.is_proved(claim.entry_hash, owner) or claim.teller in self._waiting:
            return False
        if self._silenced.get(claim.teller, (0, 0))[0] > height or not self._make_room(claim, height):
            return False
        self._waiting[claim.teller] = claim
        return True

    def _make_room(self, claim: Accusation, height: int) -> bool:
        """Whether this one may wait; who is known takes the place of the newest stranger."""
        if not claim.is_known and not self._are_strangers_heard(height):
            return False
        if len(self._waiting) < TELLERS_MAX:
            return True
        strangers = [teller for teller, one in self._waiting.items() if not one.is_known]
        if claim.is_known and strangers:
            del self._waiting[strangers[-1]]
        return claim.is_known and bool(strangers)

    def _are_strangers_heard(self, height: int) -> bool:
        return len(self._strangers) < STRANGERS_IN_VAIN_MAX or self._strangers[0] <= height - RECENT_ENTRIES

    def next(self, height: int, *, is_beside: bool = False) -> Accusation | None:
        """The one that waits longest, of strangers last; it waits no more. `is_beside`: another look goes on, so
        of those who are known alone."""
        if not self._are_strangers_heard(height):
            self._waiting = OrderedDict((teller, one) for teller, one in self._waiting.items() if one.is_known)
        known = [teller for teller, one in self._waiting.items() if one.is_known]
        found = known or ([] if is_beside else list(self._waiting))
        return self._waiting.pop(found[0]) if found else None

    def is_proved(self, entry_hash: Digest, owner: str) -> bool:
        """Whether a result of this owner in this entry was found false here. One is enough."""
        return (entry_hash, owner) in self._proved

    def proved(self, entry_hash: Digest, owner: str) -> None:
        """It was, just now."""
        self._proved[entry_hash, owner] = None
        while len(self._proved) > PROVED_MAX:
            self._proved.popitem(last=False)

    def in_vain(self, claim: Accusation, height: int, *, is_refuted: bool) -> None:
        """It led to nothing: what was shown proves nothing (`is_refuted`), or not enough was shown in time."""
        times = self._silenced.pop(claim.teller, (0, 0))[1] + 1
        rounds = SILENCED_ROUNDS if is_refuted else min(SILENCED_ROUNDS, 1 << min(times, 6))
        self._silenced[claim.teller] = height + rounds, times
        while len(self._silenced) > SILENCED_MAX:
            self._silenced.popitem(last=False)
        if not claim.is_known:
            self._strangers.append(height)
