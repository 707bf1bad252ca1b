"""Points of a loss curve in one: what a step without a finite loss must not spoil."""

import math
from collections.abc import Iterable


def mean_of_known(losses: Iterable[float | None]) -> float:
    """Mean of the finite losses; NaN where there is none.

    >>> mean_of_known([2.0, math.nan, 4.0, None]), mean_of_known([math.inf])
    (3.0, nan)
    """
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return sum(known) / len(known) if known else math.nan
