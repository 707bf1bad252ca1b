"""A recovery that runs, as the round machine sees it: whose claims it looks at. Source: protocol/06-rounds.md R22."""

from collections.abc import Collection, Mapping, Set as AbstractSet
from dataclasses import dataclass

from dilocoxd.ids import PeerId
from dilocoxd.machines.peers.record import Claim
from dilocoxd.machines.peers.tips import CLAIMS_MAX
from dilocoxd.wire.messages import TakeBack


@dataclass(frozen=True, slots=True)
class Recovering:
    """Built when it begins, dropped when it ends."""

    asked: dict[PeerId, Claim]
    """Who claimed something, and what; whoever does so later is added."""
    peers: AbstractSet[PeerId]
    """Whom the order names."""
    takes_more: bool
    """Others may be asked, too (R22.7)."""
    waited_s: float | None
    """We had been in the attempt for so long and had accepted nothing: we may come back to it."""
    takes_back: TakeBack | None = None

    def added(self, claims: Mapping[PeerId, Claim]) -> tuple[PeerId, ...]:
        """Who claims something since it began. `claims`: all of now. Whom the order names was asked already, perhaps
        before it claimed this."""
        if not self.takes_more:
            return ()
        new = sorted(peer for peer in claims if peer not in self.asked and peer not in self.peers)
        added = tuple(new[: CLAIMS_MAX - len(self.asked)])  # ids come and go, and it may take long
        self.asked.update({peer: claims[peer] for peer in added})
        return added

    def looked_at(self, added: Collection[PeerId], unasked: Collection[PeerId]) -> dict[PeerId, Claim]:
        """Claims that it has come to. Who was added when it was over already is not among `added` (R22.2)."""
        known = {*self.peers, *added}.difference(unasked)
        return {peer: claim for peer, claim in self.asked.items() if peer in known}
