"""Nodes that are left alone for a while, because they answered nothing or their disk is full: others may take what they
would have run, and the operator reads why. Pure; each is one start of `dilocoxd node`, another start begins anew.
"""

import time
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.nodes import NodeAside
from dilocoxd.daemon.head.waiting import WaitingNode

PAUSE_FIRST_S: Final = 10.0
"""Longer than any place waits for the node that had it last (CHOICE_S, STAGE_CHOICE_S): one with room goes first."""
PAUSE_MOST_S: Final = 120.0
TOLD_S: Final = 60.0
"""So long it is told of beyond its pause: it is tried meanwhile, and may fail again."""
KEPT_S: Final = 600.0
"""Who has not failed for so long begins with the first pause again."""
ASIDE_MAX: Final = 256


@dataclass(slots=True)
class _Aside:
    who: str
    why: str
    pause_s: float
    noted: float


class SetAside:
    """Times are those of the loop."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Aside] = {}
        """By start of the node, the one that failed last at the end."""

    def note(self, node: WaitingNode, why: str, now: float) -> None:
        """It failed: it is left alone from now on, twice as long as the last time."""
        last = self._nodes.pop(_key(node), None)
        is_again = last is not None and now - last.noted < last.pause_s + KEPT_S
        pause_s = min(2 * last.pause_s, PAUSE_MOST_S) if last is not None and is_again else PAUSE_FIRST_S
        self._nodes[_key(node)] = _Aside(node.who, why, pause_s, now)
        if len(self._nodes) > ASIDE_MAX:
            del self._nodes[next(iter(self._nodes))]

    def why(self, node: WaitingNode, now: float) -> str:
        """It is left alone now, for this; empty: it is not."""
        found = self._nodes.get(_key(node))
        return found.why if found is not None and now < found.noted + found.pause_s else ""

    def told(self, now: float) -> tuple[NodeAside, ...]:
        """For people."""
        return tuple(
            NodeAside(node=each.who, why=each.why, until=round(time.time() + each.noted + each.pause_s - now, 3))
            for each in self._nodes.values()
            if now < each.noted + each.pause_s + TOLD_S
        )


def _key(node: WaitingNode) -> str:
    return node.hello.process or node.host
