"""Decides the low rank and the number of inner steps of the next phase: AdaGradCmp, QSR, per-site H.

Pure numbers; what is decided here goes into the committed entry, so all peers use the same. Sources: DiLoCoX
arXiv 2506.21263 Algorithm 3 (ALGORITHMS 1.4: the operators of alpha and H are lost in the only text found, so `shrink`
and `grow` are two readings); QSR arXiv 2310.14423; per-site H: GASLoC figures 2 and 3 (ALGORITHMS 2.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dilocoxd.errors import ConfigError

Coupling = Literal["shrink", "grow", "none"]
REGROWTH = 1.1
"""A measured rank can never exceed the one in use, so the window mean is stretched by this before it is applied."""


@dataclass(frozen=True, slots=True)
class AdaptiveLimits:
    """Start values and clamps. `window`: rounds in the mean (c); the first c rounds use the start values."""

    lowrank_r: int
    inner_steps: int
    window: int = 5
    lowrank_r_min: int = 1
    inner_steps_min: int = 1
    inner_steps_max: int = 1_000_000
    coupling: Coupling = "shrink"

    def __post_init__(self) -> None:
        if not 1 <= self.lowrank_r_min <= self.lowrank_r or self.window < 1:
            raise ConfigError(
                f"adaptive window {self.window} and lowrank_r {self.lowrank_r_min}..{self.lowrank_r} do not fit; "
                "use a window of at least 1 and 1 <= lowrank_r_min <= lowrank_r"
            )
        if not 1 <= self.inner_steps_min <= self.inner_steps <= self.inner_steps_max:
            raise ConfigError(
                f"inner_steps {self.inner_steps} is not within {self.inner_steps_min}..{self.inner_steps_max}; "
                "use 1 <= inner_steps_min <= inner_steps <= inner_steps_max"
            )


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """Newest measurements, oldest first: fractions r' / r_1 of the last committed results; part of the shared state."""

    measured: tuple[float, ...] = ()

    def observe(self, limits: AdaptiveLimits, fraction: float) -> AdaptiveState:
        """State after a committed result whose effective rank is `fraction` of the start value."""
        return AdaptiveState((*self.measured, fraction)[-limits.window :])

    def decide(self, limits: AdaptiveLimits) -> tuple[int, int]:
        """(lowrank_r, inner_steps) of the next round."""
        if len(self.measured) < limits.window:
            return limits.lowrank_r, limits.inner_steps
        mean = sum(self.measured) / limits.window
        grown = math.ceil(REGROWTH * mean * limits.lowrank_r)
        lowrank_r = max(limits.lowrank_r_min, min(limits.lowrank_r, grown))
        steps = limits.inner_steps
        if limits.coupling == "shrink":
            steps = round(limits.inner_steps * lowrank_r / limits.lowrank_r)
        elif limits.coupling == "grow":
            steps = round(limits.inner_steps * limits.lowrank_r / lowrank_r)
        return lowrank_r, max(limits.inner_steps_min, min(limits.inner_steps_max, steps))


@dataclass(slots=True)
class RankMeter:
    """Effective rank of a committed result, as a fraction of the start rank, averaged over matrices."""

    lowrank_r: int
    eps: float = 0.1
    _fractions: list[float] = field(default_factory=list)

    def add(self, singular_values: Sequence[float]) -> None:
        """One matrix; `singular_values` of its Delta, any order."""
        self._fractions.append(effective_rank(singular_values, self.eps) / self.lowrank_r)

    def fraction(self) -> float:
        """Mean so far in steps of 1/64, so that a last bit of an eigenvalue does not decide; 1 without matrices."""
        if not self._fractions:
            return 1.0
        return min(1.0, round(64 * sum(self._fractions) / len(self._fractions)) / 64)


def effective_rank(singular_values: Sequence[float], eps: float) -> int:
    """Smallest k such that the k largest hold a fraction 1 - eps of the energy; 0 for a zero matrix."""
    energies = sorted((value * value for value in singular_values), reverse=True)
    wanted = (1 - eps) * sum(energies)
    held = 0.0
    for count, energy in enumerate(energies):
        if held >= wanted:
            return count
        held += energy
    return len(energies)


def qsr_inner_steps(alpha: float, inner_lr: float, inner_steps_min: int) -> int:
    """Quadratic synchronisation rule: max(H_min, floor((alpha / lr)^2)); changes only at a boundary."""
    ratio = alpha / inner_lr
    return max(inner_steps_min, math.floor(ratio * ratio))


def inner_steps_in_time(cycle_s: float, exchange_s: float, step_s: float, inner_steps_min: int = 1) -> int:
    """Steps a site does so that it reaches the boundary with the others: floor((T - t_exchange) / t_step)."""
    return max(inner_steps_min, math.floor((cycle_s - exchange_s) / step_s))


def straggler_inner_steps(inner_steps: int, num_peers: int, bandwidth_fraction: float, exchange_steps: float) -> int:
    """H_i of a site with a slow link: max(1, floor(H - k c (1/rho - 1))).

    `exchange_steps` (c): one exchange at full bandwidth in units of inner steps; `num_peers` (k) exchanges per round.
    """
    waiting = num_peers * exchange_steps * (1 / bandwidth_fraction - 1)
    return max(1, math.floor(inner_steps - waiting + 1e-9))
