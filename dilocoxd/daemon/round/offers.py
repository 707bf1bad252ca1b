"""Whether the contributions that a message names were offered by their peers: checked before the machine hears it.

A signature takes about 0.05 ms to check and comes again with every Ready and proposal, so those that were right are
remembered. Source: protocol/06-rounds.md, R25.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from dilocoxd.machines.limits import VoteKeys
from dilocoxd.wire.entry import Contribution, Signature
from dilocoxd.wire.messages import Propose, Ready

REMEMBERED_MAX: Final = 4096


class OfferCheck:
    """Remembers the newest REMEMBERED_MAX right offers. `contributors_max`: of a proposal that is larger the machine
    refuses all, so nothing of it is checked here."""

    def __init__(self, keys: VoteKeys, contributors_max: int) -> None:
        self._keys = keys
        self._contributors_max = contributors_max
        self._known: OrderedDict[tuple[Contribution, Signature], None] = OrderedDict()

    def problem(self, message: Any) -> str:
        """Why the message must not be heard (code `bad_offer`); empty if it may."""
        if isinstance(message, Ready):
            if (message.contribution is None) != (message.offer is None):
                return "offers without a signature, or signs nothing"
            if message.contribution is None or message.offer is None:
                return ""
            return self._problem([message.contribution], [message.offer])
        if isinstance(message, Propose) and len(message.contributions) <= self._contributors_max:
            return self._problem(message.contributions, message.offers)
        return ""

    def _problem(self, contributions: Sequence[Contribution], offers: Sequence[Signature]) -> str:
        if len(contributions) != len(offers):
            return f"{len(offers)} offers for {len(contributions)} contributions"
        for offered in zip(contributions, offers, strict=True):
            if not self._check(offered):
                return f"{offered[0].peer} did not sign phase {offered[0].phase} as it is named"
        return ""

    def _check(self, offered: tuple[Contribution, Signature]) -> bool:
        """Whether its peer signed it; the newest right ones are remembered."""
        if offered in self._known:
            self._known.move_to_end(offered)
            return True
        if not self._keys.is_offered(*offered):
            return False
        self._known[offered] = None
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return True
