"""Adaptive gradient compression around an engine: measure the committed Delta, set low rank and H of the next round.

Source: DiLoCoX arXiv 2506.21263 Algorithm 3; the decision itself is in outer/schedule.py.
"""

from __future__ import annotations

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.outer.schedule import AdaptiveLimits, AdaptiveState, RankMeter


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
        self.state = self.state.observe(self._limits, meter.fraction())
        self.lowrank_r, self.inner_steps = self.state.decide(self._limits)
        self._transform.set_lowrank_r(self.lowrank_r)
