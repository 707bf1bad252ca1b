"""Decides how many inner steps a site does when sites differ in speed (`schedule.kind = per_site`). Pure.

All sites are to reach the boundary together: in the time in which the site of median speed (the faster of two) does H
steps, a slower one does fewer; contributions weigh by their tokens, and the entry names both. Each site decides for
itself from the step times in the heartbeats, as it may: a count of steps is no part of the shared state. Source:
ALGORITHMS 2.3 (GASLoC, arXiv 2606.11081, figures 2 and 3), without the exchange's share: all sites wait for that.
"""

import math
from collections.abc import Sequence
from statistics import median_low


def site_inner_steps(inner_steps: int, step_seconds: float, others: Sequence[float], at_least: int) -> int:
    """Inner steps of a site whose steps take `step_seconds`; `at_least` 0: all sites do `inner_steps`.

    >>> [site_inner_steps(30, step, [1.0, 1.0, 2.0], 1) for step in (0.5, 1.0, 2.0, 100.0)]
    [30, 30, 15, 1]
    """
    if not at_least or not others or step_seconds <= 0:
        return inner_steps
    cycle_s = inner_steps * median_low([*others, step_seconds])
    # A step more must not depend on the last bit of a quotient.
    return min(inner_steps, max(at_least, math.floor(cycle_s / step_seconds + 1e-6)))
