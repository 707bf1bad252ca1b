"""Nodes whose clocks were wrong when they came: certificates of nodes are looked at by clocks (ADR 45), and logs of two
machines are read beside each other. Pure."""

from typing import Final

from dilocoxd.answers.nodes import NodeClock
from dilocoxd.daemon.head.waiting import WaitingNode

OFF_S: Final = 30.0
"""Half of what the certificates bear; a hello is on its way for much less."""
CLOCKS_MAX: Final = 256


class Clocks:
    """Of the newest start of each node that is off."""

    def __init__(self) -> None:
        self._off: dict[tuple[str, ...], NodeClock] = {}

    def note(self, node: WaitingNode, now: float) -> None:
        """It came now, by our clock, Unix."""
        place = node.process.place or (node.host, node.hello.name)
        self._off.pop(place, None)
        ahead_s = node.hello.clock_ms / 1000 - now
        if node.hello.clock_ms and abs(ahead_s) > OFF_S:
            self._off[place] = NodeClock(node=node.who, ahead_s=round(ahead_s, 1))
        if len(self._off) > CLOCKS_MAX:
            del self._off[next(iter(self._off))]

    @property
    def told(self) -> tuple[NodeClock, ...]:
        """For people."""
        return tuple(self._off.values())
