"""Decides whether an outer learning rate is safe for its momentum and delay.

Closed forms for one scalar mode with contraction 1 per round (the stiffest): synchronous Nesterov is stable below
2 (1 + b) / (1 + 2 b); with a delay of one round below the positive root of b^2 k^2 + (1 - b^2) k - (1 - b) = 0.
"""

import math


def safe_outer_lr(momentum: float, *, is_delayed: bool) -> float:
    """Largest stable outer learning rate for Nesterov (or SGD at momentum 0).

    >>> round(safe_outer_lr(0.9, is_delayed=False), 3), round(safe_outer_lr(0.9, is_delayed=True), 4)
    (1.357, 0.2531)
    """
    b = momentum
    if not is_delayed:
        return 2 * (1 + b) / (1 + 2 * b)
    if b == 0:
        return 1.0
    p = 1 - b * b
    return (math.sqrt(p * p + 4 * b * b * (1 - b)) - p) / (2 * b * b)
