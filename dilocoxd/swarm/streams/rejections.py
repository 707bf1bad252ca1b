"""Tells the event log of bad input. Who is kept out and knocks on, or waits for its turn again and again, is told of
once, and then seldom, with a count.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.refusals import NOT_LET_IN
from dilocoxd.telemetry.catalogue import Event, InputRejected

KNOCKS_TOLD_EVERY_S: Final = 3600.0
KNOCKERS_MAX: Final = 1024
SELDOM_TOLD: Final = NOT_LET_IN | {"empty_exchanges"}


class Rejections:
    """Every one is counted by the guard; only the telling is thinned, for a site that is out knocks for ever."""

    def __init__(self, guard: PeerGuard, clock: Callable[[], float], emit: Callable[[Event], None]) -> None:
        self._guard = guard
        self._clock = clock
        self._emit = emit
        self._knocks: OrderedDict[tuple[PeerId, str], tuple[float, int]] = OrderedDict()
        """By peer and code: when it was told last, and how often it came since."""

    def note_empty(self, peer: PeerId) -> None:
        """Its next exchange waits."""
        self.count(peer, empty_exchanges())

    def count(self, peer: PeerId, error: WireError) -> None:
        """One that the guard does not know of yet."""
        self._guard.count(peer, error.code)
        self.tell(peer, error)

    def tell(self, peer: PeerId, error: WireError) -> None:
        """One that was counted."""
        detail = error.detail
        if error.code in SELDOM_TOLD:
            now, key = self._clock(), (peer, error.code)
            told_at, since = self._knocks.get(key, (now - KNOCKS_TOLD_EVERY_S, 0))
            if now - told_at < KNOCKS_TOLD_EVERY_S:
                self._knocks[key] = (told_at, since + 1)
                return
            self._knocks[key] = (now, 0)
            self._knocks.move_to_end(key)
            while len(self._knocks) > KNOCKERS_MAX:
                self._knocks.popitem(last=False)
            detail += f" ({since} times more since it was told last)" if since else ""
        self._emit(InputRejected(peer=peer, code=error.code, detail=detail))


def empty_exchanges() -> WireError:
    """Why an exchange waits."""
    return WireError("empty_exchanges", "too many of its exchanges brought nothing that is wanted; the next ones wait")
