"""Decides when a starting peer stands where the swarm stands, and may begin to train. Pure.

Source: protocol/09-catching-up.md, L18.
"""

from collections.abc import Mapping, Set
from typing import Final

from dilocoxd.ids import PeerId

MEET_PATIENCE_S: Final = 15.0
"""So long a peer with entries of its own waits for others before it goes on alone."""


class CatchUp:
    """Whether to wait on: until we stand where the best live peer stood when we met it.

    A peer whose chain recovery could not take does not count: with a height that it only claims it could else keep
    everybody from training for ever. If all that are ahead fall silent meanwhile, a peer with entries of its own goes
    on alone after a while; one without any does not, or it would begin a second run from genesis each time the network
    fails it at the wrong moment. `is_founder`: it was told of nobody, the run may be its own. `had_entries`: it took
    part in rounds above genesis: without an entry now it has lost them, and waits for somebody who has some. Else sites
    that all lost them, or the only one, would begin the run again as if nothing had been trained.
    """

    def __init__(self, *, is_founder: bool, had_entries: bool = False) -> None:
        self.target = 0
        self._is_founder = is_founder
        self._had_entries = had_entries
        self._seen: dict[PeerId, int] = {}
        self._alone_since: float | None = None

    def may_begin(self, height: int, live: Mapping[PeerId, int], unconfirmed: Set[PeerId], now: float) -> bool:
        """To be asked again and again; `live`: where each live peer says it stands."""
        for peer, claimed in live.items():
            self._seen[peer] = max(claimed, self._seen.get(peer, 0))
        believed = {peer: claimed for peer, claimed in live.items() if peer not in unconfirmed}
        best = max(believed.values(), default=0)
        self.target = max([claimed for peer, claimed in self._seen.items() if peer not in unconfirmed], default=0)
        may_be_first = (bool(believed) or self._is_founder) and not self._had_entries
        if height >= self.target and (height > 0 or may_be_first):
            return True
        if best > height:
            self._alone_since = None
            return False
        self._alone_since = now if self._alone_since is None else self._alone_since
        return height > 0 and now - self._alone_since > MEET_PATIENCE_S
