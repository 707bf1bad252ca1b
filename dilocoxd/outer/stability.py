"""Largest stable outer learning rate, for warnings: decides nothing, says when chosen values lie beyond it.

Scalar mode: inner training contracts x by a factor 1 - lambda per round, so u = lambda x; stable while
lr * lambda < limit; the stiffest mode has lambda = 1. Source: ALGORITHMS 5.3.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

DelayClass = Literal["none", "phase", "arrival"]


def sync_limit(momentum: float) -> float:
    """Nesterov without delay: 2 (1 + b) / (1 + 2 b)."""
    return 2 * (1 + momentum) / (1 + 2 * momentum)


def delayed_limit(momentum: float) -> float:
    """Nesterov with the mean applied one whole round late: root of b^2 k^2 + (1 - b^2) k - (1 - b)."""
    if momentum == 0:
        return 1.0
    square = momentum * momentum
    return (math.sqrt((1 - square) ** 2 + 4 * square * (1 - momentum)) - (1 - square)) / (2 * square)


def eager_limit(momentum: float, num_sites: int) -> float:
    """Nesterov on Delta^{t-1} + (u^t - u^{t-1}) / M, sites alike: one M-th of the gradient is fresh.

    M = 1 is `sync_limit`; large M tends to `delayed_limit`. Found by bisection on the spectral radius.
    """
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        if _spectral_radius(middle, momentum, 1 / num_sites) < 1:
            low = middle
        else:
            high = middle
    return low


def stability_warning(name: str, lr: float, momentum: float, delay: DelayClass) -> str | None:
    """One sentence for the operator if (lr, momentum) can diverge on stiff directions under this delay, else None."""
    if name not in {"sgd", "nesterov"}:
        return None
    limit = delayed_limit(momentum) if delay == "phase" else sync_limit(momentum)
    if lr <= limit:
        return None
    return (
        f"outer lr {lr} with momentum {momentum} is above {limit:.3f}, the stability limit for delay {delay!r}; "
        f"use at most {math.floor(limit * 900) / 1000} or less momentum"
    )


def _spectral_radius(k: float, momentum: float, fresh: float) -> float:
    """Of the map (x, x_previous, m) -> next with g = k-scaled mix of fresh and old pseudo-gradient."""
    b = momentum
    newest, oldest = fresh * (1 + b), (1 - fresh) * (1 + b)
    rows = [
        [1 - k * newest, -k * oldest, -k * b * b],
        [1.0, 0.0, 0.0],
        [fresh, 1 - fresh, b],
    ]
    return float(torch.linalg.eigvals(torch.tensor(rows, dtype=torch.float64)).abs().max())
