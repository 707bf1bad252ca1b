"""Decides from what the kernel says of connections whether the hosts at their other ends answer at all. Pure.

Kernels acknowledge what they get within a round trip, however busy the machine and whatever its processes do. So a host
that acknowledges neither what was sent nor what was sent again is cut off, long before its process is missed. Who
stands still (SIGSTOP) or dies is not: its kernel goes on. Times follow the slowest round trip of late: where payloads
fill the queue of a thin line, one takes a second that took milliseconds before them, and will again with the next
payloads.
Source: protocol/05-discovery.md, D11.5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Monotonic, PeerId

REPEATS: Final = 2
"""Sent again so often, each time after twice as long as before (200 ms at least), or asked again by keep-alive."""
REPEATING: Final = 3
"""So many connections on which that was so once say as much: where a queue made round trips long, the second time comes
a second later."""
QUIET_S: Final = 0.5
"""Nothing at all came for so long and two round trips."""
HOLD_S: Final = 0.2
"""The last repetition gets this and one and a half round trips."""
ANSWER_S: Final = 1.5
"""A host from which something came within this and two round trips answers: idle ones are asked once a second."""
SLOW_HALF_S: Final = 300.0
"""A slow round trip counts for half as much after this long."""
SLOW_MIN_S: Final = 0.05
SLOW_KEPT: Final = 1024
LOOK_LATE_S: Final = 0.7
"""A look that comes so long after the one before says that we were not running: what is old may just not be read."""


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What the kernel says of one connection."""

    heard_s: float
    """Since anything came by it, acknowledgements included."""
    num_repeats: int
    """How often what is not acknowledged was sent again, or a keep-alive was, since anything was acknowledged."""
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class HostsHeard:
    """Of the peers that were looked at; of the others nothing is known."""

    answering: frozenset[PeerId]
    silent: frozenset[PeerId]


class HostWatch:
    """Looks, some each second, at the connections that were used a moment ago."""

    def __init__(self) -> None:
        self._unanswered: dict[PeerId, Monotonic] = {}
        """Since which look all connections of a peer are quiet, with something that was repeated."""
        self._silent: dict[PeerId, Monotonic] = {}
        """Since when we call a host silent: what came before is no answer, though the links that told it are closed."""
        self._slow: dict[PeerId, float] = {}
        """Slowest round trip of each peer, seconds, as far as it is not forgotten."""
        self._looked_at = Monotonic(0.0)

    def look(self, links: Mapping[PeerId, Sequence[LinkFacts]], now: Monotonic) -> HostsHeard:
        """Every connection of each peer, at least one of each."""
        if now - self._looked_at > LOOK_LATE_S:
            self._unanswered.clear()
        self._note_slow(links, now - self._looked_at)
        self._looked_at = now
        trips_s = {peer: max(_round_trip_s(facts), self._slow.get(peer, 0.0)) for peer, facts in links.items()}
        self._unanswered = {
            peer: self._unanswered.get(peer, now)
            for peer, facts in links.items()
            if _is_unanswered(facts, trips_s[peer])
        }
        answering = frozenset(peer for peer, facts in links.items() if self._answers(peer, facts, now))
        silent = {peer for peer, since in self._unanswered.items() if now - since >= _hold_s(trips_s[peer])}
        silent |= self._silent.keys() & links.keys()
        self._silent = {peer: self._silent.get(peer, now) for peer in silent - answering}
        return HostsHeard(answering, frozenset(self._silent))

    def _note_slow(self, links: Mapping[PeerId, Sequence[LinkFacts]], passed_s: float) -> None:
        left = 0.5 ** (passed_s / SLOW_HALF_S)
        slow = {peer: trip_s * left for peer, trip_s in self._slow.items() if trip_s * left > SLOW_MIN_S}
        for peer, facts in links.items():
            if (trip_s := _round_trip_s(facts)) > slow.get(peer, SLOW_MIN_S):
                slow[peer] = trip_s
        while len(slow) > SLOW_KEPT:
            del slow[min(slow, key=slow.__getitem__)]
        self._slow = slow

    def _answers(self, peer: PeerId, facts: Sequence[LinkFacts], now: Monotonic) -> bool:
        heard_s = _heard_s(facts)
        if peer in self._silent:
            return now - heard_s > self._silent[peer]
        return peer not in self._unanswered and heard_s <= ANSWER_S + 2 * _round_trip_s(facts)


def _is_unanswered(facts: Sequence[LinkFacts], round_trip_s: float) -> bool:
    is_repeated = max(link.num_repeats for link in facts) >= REPEATS
    is_repeated = is_repeated or sum(link.num_repeats > 0 for link in facts) >= REPEATING
    return is_repeated and _heard_s(facts) >= QUIET_S + 2 * round_trip_s


def _hold_s(round_trip_s: float) -> float:
    return HOLD_S + 1.5 * round_trip_s


def _heard_s(facts: Sequence[LinkFacts]) -> float:
    return min(link.heard_s for link in facts)


def _round_trip_s(facts: Sequence[LinkFacts]) -> float:
    return max(link.round_trip_s for link in facts)
