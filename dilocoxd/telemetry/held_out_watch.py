"""Whose contributions make the loss on held-out text worse, while those of the others make it better. Pure.

Now and then the trainers of this site measure a state with and without one contribution, in the segments that are
summed here. A site does harm when its last LOOKS all added more to the loss than a quarter of what one of the
others takes from it, and more than two standard errors. Where those of the others do not help either, nobody is named:
that is the outer learning rate, or the end of the descent. Source: docs/adr/0039-loss-without-one-site.md.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

LOOKS: Final = 3
"""Of one site, one after the other."""
OTHERS_LOOKS: Final = 3
"""Of all others together, before anything is said."""
PART: Final = 0.25
"""Of what a contribution of the others takes from the loss, as a rule: less harm than that may be chance."""
ERRORS: Final = 2.0
"""Standard errors. Late in training one look is mostly noise."""
SITES_MAX: Final = 1024
"""Whose looks are kept, as many as an entry can name; those not looked at for longest are forgotten."""


@dataclass(slots=True)
class HeldOutWatch:
    """Looks of one site at the contributions of all, its own included."""

    _looks: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def note(self, peer: str, added: float, deviation: float) -> bool:
        """One more look; whether this site does harm.

        Args:
            peer: whose contribution was left out.
            added: loss with it less loss without it, nats per token.
            deviation: standard error of `added`.
        """
        looks = self._looks.pop(peer, deque(maxlen=LOOKS))
        looks.append((added, deviation))
        self._looks[peer] = looks
        while len(self._looks) > SITES_MAX:
            del self._looks[next(iter(self._looks))]
        others = [one for other, seen in self._looks.items() if other != peer for one, _ in seen]
        if len(looks) < LOOKS or len(others) < OTHERS_LOOKS:
            return False
        usual = statistics.median(others)
        return usual < 0 and all(one > max(-PART * usual, ERRORS * error) for one, error in looks)
