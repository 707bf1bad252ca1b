"""Outer optimizers: x <- x - step(g) in place on slices of the anchor, g being the committed mean pseudo-gradient.

    sgd         x -= lr g                                       0 state slots
    heavy_ball  m = b m + g;  x -= lr m                         1
    nesterov    m = b m + g;  x -= lr (g + b m)                 1   (torch.optim.SGD(nesterov=True, dampening=0))
    adam        m = b m + (1-b) g;  v = b2 v + (1-b2) g g;  x -= lr m^ / (sqrt(v^) + eps)     2
Part of the shared path: every operation is rounded by IEEE 754 on its own (no fused multiply-add, no `alpha=`), so the
same entry gives the same bits for every thread count, vector width and CPU. Scalars are rounded to fp32 once.
Source: ALGORITHMS notation and 4.2 hook 7.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.codec import chunks
from dilocoxd.errors import ConfigError
from dilocoxd.outer.rounding import fp32


class OuterOptimizer(ABC):
    """Deterministic function of (x, state, g, step); one instance serves all segments."""

    num_slots: int
    """State buffers of the size of x, zero at genesis."""

    def step_(self, x: Tensor, slots: Sequence[Tensor], g: Tensor, outer_step: int) -> None:
        """Update float32[n] slices `x` and `slots` in place; `g` is float32[n] and is not changed.

        `outer_step` is 0 for the first committed entry (only Adam's bias correction depends on it).
        """
        if len(slots) != self.num_slots:
            raise ValueError(f"{len(slots)} state slots given, {self.num_slots} needed")
        for start, stop in chunks(x.numel()):
            update = self.update(g[start:stop], [slot[start:stop] for slot in slots], outer_step)
            x[start:stop].sub_(update)

    @abstractmethod
    def update(self, g: Tensor, slots: list[Tensor], outer_step: int) -> Tensor:
        """What to subtract from x for one chunk; changes `slots` in place, leaves `g` alone."""


class Sgd(OuterOptimizer):
    num_slots = 0

    def __init__(self, lr: float) -> None:
        self._lr = fp32(lr)

    def update(self, g: Tensor, slots: list[Tensor], outer_step: int) -> Tensor:
        return g.mul(self._lr)


class HeavyBall(OuterOptimizer):
    num_slots = 1

    def __init__(self, lr: float, momentum: float) -> None:
        self._lr, self._momentum = fp32(lr), fp32(momentum)

    def update(self, g: Tensor, slots: list[Tensor], outer_step: int) -> Tensor:
        m = slots[0]
        m.mul_(self._momentum)
        m.add_(g)
        return m.mul(self._lr)


class Nesterov(OuterOptimizer):
    num_slots = 1

    def __init__(self, lr: float, momentum: float) -> None:
        self._lr, self._momentum = fp32(lr), fp32(momentum)

    def step_(self, x: Tensor, slots: Sequence[Tensor], g: Tensor, outer_step: int) -> None:
        if loops.found and len(slots) == 1 and x.dtype == torch.float32:
            loops.found.nesterov(x, slots[0], g, self._lr, self._momentum)
        else:
            super().step_(x, slots, g, outer_step)

    def update(self, g: Tensor, slots: list[Tensor], outer_step: int) -> Tensor:
        m = slots[0]
        m.mul_(self._momentum)
        m.add_(g)
        look_ahead = m.mul(self._momentum)
        look_ahead.add_(g)
        return look_ahead.mul_(self._lr)


class Adam(OuterOptimizer):
    num_slots = 2

    def __init__(self, lr: float, momentum: float, beta2: float, eps: float) -> None:
        self._lr, self._eps = fp32(lr), fp32(eps)
        self._betas = (momentum, beta2)

    def update(self, g: Tensor, slots: list[Tensor], outer_step: int) -> Tensor:
        m, v = slots
        beta, beta2 = self._betas
        m.mul_(fp32(beta))
        m.add_(g.mul(fp32(1.0 - beta)))
        square = g.mul(g)
        v.mul_(fp32(beta2))
        v.add_(square.mul_(fp32(1.0 - beta2)))
        divisor = v.mul(fp32(1.0 / (1.0 - _power(beta2, outer_step + 1)))).sqrt_()
        divisor.add_(self._eps)
        update = m.mul(fp32(1.0 / (1.0 - _power(beta, outer_step + 1))))
        return update.div_(divisor).mul_(self._lr)


def outer_from_name(
    name: str, lr: float, momentum: float = 0.0, beta2: float = 0.95, eps: float = 1e-8
) -> OuterOptimizer:
    """The optimizer that a manifest calls `name`: sgd, heavy_ball, nesterov or adam. Raises ConfigError."""
    if not (math.isfinite(lr) and 0 < lr <= 10):
        raise ConfigError(f"outer lr is {lr}; use a number above 0 and at most 10")
    if not 0 <= momentum < 1:
        raise ConfigError(f"outer momentum is {momentum}; use a number from 0 to below 1")
    match name:
        case "sgd" if momentum == 0:
            return Sgd(lr)
        case "sgd":
            raise ConfigError(
                f"outer momentum is {momentum} but sgd has none; use nesterov or heavy_ball, or momentum 0"
            )
        case "heavy_ball":
            return HeavyBall(lr, momentum)
        case "nesterov":
            return Nesterov(lr, momentum)
        case "adam":
            if not (0 <= beta2 < 1 and 0 < eps < 1):
                raise ConfigError(f"adam beta2 is {beta2} and eps {eps}; use 0 <= beta2 < 1 and 0 < eps < 1")
            return Adam(lr, momentum, beta2, eps)
        case _:
            raise ConfigError(f"outer optimizer {name!r} is unknown; use sgd, heavy_ball, nesterov or adam")


def _power(base: float, exponent: int) -> float:
    """base ** exponent by squaring: only IEEE products, so not subject to the platform's pow()."""
    result, factor = 1.0, base
    while exponent:
        if exponent & 1:
            result *= factor
        factor *= factor
        exponent >>= 1
    return result


def zero_slots(optimizer: OuterOptimizer, numel: int) -> list[Tensor]:
    """The state at genesis."""
    return [torch.zeros(numel) for _ in range(optimizer.num_slots)]
