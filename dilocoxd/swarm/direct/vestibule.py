"""Who waits between accept and the end of the handshake: few, for a short time, and not too many a second.

Pure bookkeeping. Whoever has waited longest gives way to whoever comes, first among those of the same address, then of
the same network, then of all: nobody can keep others out by saying nothing. Nor by saying something: three networks of
strangers take all handshakes of a second, so addresses that members came from have a second's worth of their own.
Source: protocol/04-streams.md, S11.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.swarm.streams.room import network_of

PLACES_ADDRESS: Final = 16
PLACES_NETWORK: Final = 64
PLACES_ALL: Final = 128
EACH: Final = Rate(per_s=10.0, burst=64.0)
"""Handshakes a second of one address; each costs about a millisecond of our processor."""
NETWORK: Final = Rate(per_s=20.0, burst=256.0)
TOTAL: Final = Rate(per_s=50.0, burst=512.0)
"""Of addresses that a member came from, and as much of all others."""
KNOWN_MAX: Final = 1024
"""Addresses that a member came from; whichever none came from for longest is forgotten."""


class Visitor:
    """One connection whose handshake is not over; `close` ends it."""

    __slots__ = ("close", "ip", "network")

    def __init__(self, ip: str, close: Callable[[], None]) -> None:
        self.ip = ip
        self.network = network_of(ip)
        self.close = close


class Vestibule:
    """All connections whose handshake is not over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._of_strangers = Budget(clock, each=EACH, network=NETWORK, total=TOTAL)
        self._of_known = Budget(clock, each=EACH, network=NETWORK, total=TOTAL)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[Visitor, None] = {}
        self.counts: Counter[str] = Counter()
        """entered, over_budget, gave_way."""

    def enter(self, visitor: Visitor) -> bool:
        """Whether it may shake hands; pair with `leave`."""
        budget = self._of_known if visitor.ip in self._known else self._of_strangers
        if not budget.take(visitor.ip, network=visitor.network):
            self.counts["over_budget"] += 1
            return False
        self._make_room([one for one in self._waiting if one.ip == visitor.ip], PLACES_ADDRESS)
        self._make_room([one for one in self._waiting if one.network == visitor.network], PLACES_NETWORK)
        self._make_room(list(self._waiting), PLACES_ALL)
        self._waiting[visitor] = None
        self.counts["entered"] += 1
        return True

    def note_member(self, visitor: Visitor) -> None:
        """A member came, and proved who it is."""
        self._known[visitor.ip] = None
        self._known.move_to_end(visitor.ip)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def leave(self, visitor: Visitor) -> None:
        """Its handshake is over; once is enough."""
        self._waiting.pop(visitor, None)

    def __len__(self) -> int:
        return len(self._waiting)

    def _make_room(self, among: list[Visitor], places: int) -> None:
        for oldest in among[: max(0, len(among) - places + 1)]:
            self.leave(oldest)
            oldest.close()
            self.counts["gave_way"] += 1
