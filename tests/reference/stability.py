"""Largest stable outer learning rate, for warnings: decides nothing, says when chosen values lie beyond it.

Scalar mode: inner training contracts x by a factor 1 - lambda per round, so u = lambda x; stable while
lr * lambda < limit; the stiffest mode has lambda = 1. Source: ALGORITHMS 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

CONTRACTIONS = (*(step / 20 for step in range(1, 20)), 0.99, 0.999)
"""Fractions of the way to the optimum that a phase goes, from slow to stiff directions."""

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
    return _largest_stable(lambda k: _eager_radius(k, momentum, 1 / num_sites))


def arrival_limit(momentum: float, arrival_fraction: float) -> float:
    """Nesterov with merge on arrival, tau = `arrival_fraction` of the phase, worst over contractions per phase.

    Within 2% of `sync_limit` up to tau = H / 2 and about 20% below it at tau = H: keeping own progress costs hardly any
    stability, unlike a delay of the whole round. Found by bisection.
    """
    return _largest_stable(lambda k: max(_arrival_radius(k, momentum, c, arrival_fraction) for c in CONTRACTIONS))


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


def _largest_stable(radius: Callable[[float], float]) -> float:
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        if radius(middle) < 1:
            low = middle
        else:
            high = middle
    return low


def _eager_radius(k: float, momentum: float, fresh: float) -> float:
    """Of the map (x, x_previous, m) -> next with g = k-scaled mix of fresh and old pseudo-gradient."""
    b = momentum
    newest, oldest = fresh * (1 + b), (1 - fresh) * (1 + b)
    return _spectral_radius(
        [
            [1 - k * newest, -k * oldest, -k * b * b],
            [1.0, 0.0, 0.0],
            [fresh, 1 - fresh, b],
        ]
    )


def _arrival_radius(k: float, momentum: float, contraction: float, fraction: float) -> float:
    """Of the map (x, m, theta) from one boundary to the next."""
    b, rest = momentum, 1 - contraction
    before, after = 1 - rest**fraction, rest ** (1 - fraction)
    x = [1 - k * (1 + b), -k * b * b, k * (1 + b)]
    return _spectral_radius([x, [1.0, b, -1.0], [after * x[0], after * x[1], after * (x[2] - before)]])


def _spectral_radius(rows: list[list[float]]) -> float:
    return float(torch.linalg.eigvals(torch.tensor(rows, dtype=torch.float64)).abs().max())
