"""Adaptive gradient compression around an engine: measure the committed Delta, set low rank and H of the next round.

Source: DiLoCoX arXiv 2506.21263 Algorithm 3; the decision itself is in outer/schedule.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.outer.schedule import AdaptiveLimits, AdaptiveState


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


def observed(state: AdaptiveState, limits: AdaptiveLimits, fraction: float) -> AdaptiveState:
    """The state after a committed result whose effective rank is `fraction` of the start value."""
    return AdaptiveState((*state.measured, fraction)[-limits.window :])


class AdaptiveRank:
    """Call it after each commit (`Engine.after_commit`); `inner_steps` is H of the next phase."""

    def __init__(self, transform: LowRank, limits: AdaptiveLimits, eps: float = 0.1) -> None:
        self._transform = transform
        self._limits = limits
        self._eps = eps
        self.state = AdaptiveState()
        self.lowrank_r, self.inner_steps = self.state.decide(limits)
        transform.set_lowrank_r(self.lowrank_r)

    def __call__(self) -> None:
        meter = RankMeter(self._limits.lowrank_r, self._eps)
        for values in self._transform.singular_values.values():
            meter.add(values.tolist())
        self.state = observed(self.state, self._limits, meter.fraction())
        self.lowrank_r, self.inner_steps = self.state.decide(self._limits)
        self._transform.set_lowrank_r(self.lowrank_r)
