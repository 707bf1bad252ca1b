"""Without rules R7.2 and R7.4: a contribution may be of any age, and count as often as it is offered."""

import functools

from dilocoxd.daemon import settings
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import RoundLimits


def apply() -> None:
    """Nothing is too old or was there before."""
    settings.RoundLimits = functools.partial(RoundLimits, contribution_age_max=1 << 40)  # type: ignore[misc,assignment]
    ChainView.holds = lambda self, contribution: False  # type: ignore[method-assign]
