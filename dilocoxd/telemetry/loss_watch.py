"""Says when the inner loss has jumped: far above what it usually is here, for several steps in a row. Pure.

The usual loss is the median of the newest steps; how far it strays is their median absolute deviation. Both move
neither with one bad batch nor while the loss falls, so that there is nothing to set. What is above the limit stays out
of the window: a spike does not become usual while it lasts, until it has lasted so long that it is the new level.
A rise that takes longer than the window is not seen here; the validation loss shows it.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_STEPS: Final = 128
"""Newest steps that tell what is usual."""
KNOWN_STEPS: Final = 32
"""Fewer steps tell nothing yet: after a start, and after a new level."""
NOISE_FACTOR: Final = 6.0
"""Standard deviations; what normal noise exceeds in one of 10^9 steps."""
MAD_TO_DEVIATION: Final = 1.4826
"""Standard deviation of normal noise whose median absolute deviation is 1."""
LEAST_RISE: Final = 0.05
"""Of the usual loss: where hardly any noise is, less is no spike."""
HIGH_QUANTILE: Final = 0.95
"""Text of several kinds has several usual losses; what one step of twenty has is usual too."""
SPIKE_STEPS: Final = 5
"""So many in a row above the limit: one bad batch is none, nor is a bump at a boundary."""
BACK_STEPS: Final = 20
"""So many in a row at or below the limit, and it is over."""
LEVEL_STEPS: Final = 1000
"""A spike that has lasted so long is the new level: other text, or a model that is lost."""


@dataclass(slots=True)
class LossWatch:
    """Sees each inner step of this site, in order; the same steps give the same alerts."""

    text: str = ""
    """Of the alert; empty: the loss is as usual."""
    _window: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _above: list[float] = field(default_factory=list)
    """Losses above the limit that no decision was made about: a spike begins, or these are outliers."""
    _began: str = ""
    """Where the first of `_above` was."""
    _spike_steps: int = 0
    """Since the alert was raised."""
    _back: list[float] = field(default_factory=list)
    """Losses in a row that are as usual again while the alert stands."""
    _limit: float = math.inf

    def note(self, loss: float, where: str) -> bool:
        """Whether `text` has changed by this step.

        Args:
            loss: of one inner step; one that is not finite has an alert of its own and counts as no step here.
            where: of this step, for people: a jump at the first steps of a phase came with the outer step.
        """
        if not math.isfinite(loss):
            return False
        return self._during_spike(loss) if self.text else self._as_usual(loss, where)

    def _as_usual(self, loss: float, where: str) -> bool:
        if not self._above:
            self._limit = limit_of(self._window)
        if loss <= self._limit:
            self._window.extend((*self._above, loss))  # too few for a spike: noise like all other
            self._above.clear()
            return False
        if not self._above:
            self._began = where
        self._above.append(loss)
        if len(self._above) < SPIKE_STEPS:
            return False
        self.text = (
            f"the inner loss is {statistics.median(self._above):.4g} in place of {statistics.median(self._window):.4g},"
            f" and was above {self._limit:.4g} in {SPIKE_STEPS} steps in a row since {self._began}"
        )
        self._above.clear()
        self._back.clear()
        self._spike_steps = 0
        return True

    def _during_spike(self, loss: float) -> bool:
        self._spike_steps += 1
        if loss <= self._limit:
            self._back.append(loss)
        else:
            self._back.clear()
        is_level = self._spike_steps >= LEVEL_STEPS
        if len(self._back) < BACK_STEPS and not is_level:
            return False
        if is_level:
            self._window.clear()  # what is usual is learnt anew
        self._window.extend(self._back)
        self.text = ""
        return True


def limit_of(window: deque[float]) -> float:
    """What a loss must exceed to be unusual; infinite while too little is known."""
    if len(window) < KNOWN_STEPS:
        return math.inf
    ordered = sorted(window)
    usual = statistics.median(ordered)
    deviation = MAD_TO_DEVIATION * statistics.median(abs(loss - usual) for loss in ordered)
    high = ordered[math.ceil(HIGH_QUANTILE * len(ordered)) - 1]
    return max(usual + max(NOISE_FACTOR * deviation, LEAST_RISE * abs(usual)), high)
