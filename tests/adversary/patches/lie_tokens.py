"""Contributes its pseudo-gradient with the wrong sign, and claims nine times the tokens that it has read, about as many
as the caps allow (TRUST C4)."""

from dataclasses import replace

from dilocoxd.daemon.round.driver import RoundDriver
from dilocoxd.machines.phase.outputs import OfferContribution
from tests.adversary.patches.lie_scaled import scale_contributions

TIMES = 9


def apply() -> None:
    """Every contribution."""
    scale_contributions(-1.0)
    honest = RoundDriver.offer

    def offer(self: RoundDriver, offered: OfferContribution) -> None:
        honest(self, replace(offered, tokens=TIMES * offered.tokens))

    RoundDriver.offer = offer  # type: ignore[method-assign]
