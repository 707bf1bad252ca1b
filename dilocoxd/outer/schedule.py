"""Decides the low rank and the number of inner steps of the next phase: AdaGradCmp, QSR, per-site H.

Pure numbers; what is decided here goes into the committed entry, so all peers use the same. Sources: DiLoCoX
arXiv 2506.21263 Algorithm 3 (ALGORITHMS 1.4: the operators of alpha and H are lost in the only text found, so `shrink`
and `grow` are two readings); QSR arXiv 2310.14423; per-site H: GASLoC figures 2 and 3 (ALGORITHMS 2.3).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
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

    def coupled_steps(self, lowrank_r: int) -> int:
        """Inner steps that go with a low rank."""
        steps = self.inner_steps
        if self.coupling == "shrink":
            steps = round(self.inner_steps * lowrank_r / self.lowrank_r)
        elif self.coupling == "grow":
            steps = round(self.inner_steps * self.lowrank_r / lowrank_r)
        return max(self.inner_steps_min, min(self.inner_steps_max, steps))


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """Newest measurements, oldest first: fractions r' / r_1 of the last committed results; part of the shared state."""

    measured: tuple[float, ...] = ()

    def decide(self, limits: AdaptiveLimits) -> tuple[int, int]:
        """(lowrank_r, inner_steps) of the next round."""
        if len(self.measured) < limits.window:
            return limits.lowrank_r, limits.inner_steps
        mean = sum(self.measured) / limits.window
        grown = math.ceil(REGROWTH * mean * limits.lowrank_r)
        lowrank_r = max(limits.lowrank_r_min, min(limits.lowrank_r, grown))
        return lowrank_r, limits.coupled_steps(lowrank_r)


def qsr_inner_steps(alpha: float, inner_lr: float, inner_steps_min: int) -> int:
    """Quadratic synchronisation rule: max(H_min, floor((alpha / lr)^2)); changes only at a boundary."""
    ratio = alpha / inner_lr
    return max(inner_steps_min, math.floor(ratio * ratio))


LOWRANK_LEVELS = 16
"""Low ranks that an adaptive run uses: sixteenths of the start value. Payload sizes are known for each of them."""


def lowrank_levels(lowrank_r: int, lowrank_r_min: int) -> tuple[int, ...]:
    """The low ranks a run may use, ascending; the last is `lowrank_r` itself."""
    levels = {-(-lowrank_r * step // LOWRANK_LEVELS) for step in range(1, LOWRANK_LEVELS + 1)}
    return tuple(sorted(level for level in levels if level >= min(lowrank_r_min, lowrank_r)))


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """Part of the shared state: what the next entry uses, and what it must announce for the one after it.

    An entry is proposed before its own result exists, so what is measured in entry k first shows in entry k + 2.
    """

    lowrank_r: int
    """Of the next entry's payloads; 0 without low rank."""
    inner_steps: int
    """Of phases that begin now."""
    next_lowrank_r: int
    next_inner_steps: int
    shared_steps: int = 0
    """Inner steps that the entries so far stand for: the run's place on the learning rate's cosine."""
    measured: tuple[int, ...] = ()
    """Effective ranks of the last results in 64ths of the start value, oldest first."""


class Schedule(ABC):
    """Moves a ScheduleState on with each entry. A pure function of its arguments."""

    def __init__(self, lowrank_r: int, inner_steps: int) -> None:
        self.start = ScheduleState(lowrank_r, inner_steps, lowrank_r, inner_steps)

    @property
    def lowrank_levels(self) -> tuple[int, ...]:
        """Every low rank that may occur, ascending."""
        return (self.start.lowrank_r,)

    def advance(self, state: ScheduleState, measured: int | None = None) -> ScheduleState:
        """The state after an entry whose result has the effective rank `measured` (64ths), None if it is not known."""
        window = state.measured if measured is None else (*state.measured, measured)
        moved = ScheduleState(
            state.next_lowrank_r,
            state.next_inner_steps,
            state.next_lowrank_r,
            state.next_inner_steps,
            state.shared_steps + state.inner_steps,
            window,
        )
        return self.decided(moved)

    @abstractmethod
    def decided(self, state: ScheduleState) -> ScheduleState:
        """`state` with its next_lowrank_r and next_inner_steps chosen and its window cut."""


class Constant(Schedule):
    """Start values for ever."""

    def decided(self, state: ScheduleState) -> ScheduleState:
        return replace(state, measured=())


class Adaptive(Schedule):
    """AdaGradCmp: the mean effective rank of the last committed results, rounded up to a level."""

    def __init__(self, limits: AdaptiveLimits) -> None:
        super().__init__(limits.lowrank_r, limits.inner_steps)
        self._limits = limits

    @property
    def lowrank_levels(self) -> tuple[int, ...]:
        return lowrank_levels(self._limits.lowrank_r, self._limits.lowrank_r_min)

    def decided(self, state: ScheduleState) -> ScheduleState:
        window = state.measured[-self._limits.window :]
        levels = self.lowrank_levels
        if len(window) < self._limits.window:
            return replace(state, measured=window)
        wanted, _ = AdaptiveState(tuple(value / 64 for value in window)).decide(self._limits)
        lowrank_r = next(level for level in levels if level >= wanted)
        steps = self._limits.coupled_steps(lowrank_r)
        return replace(state, measured=window, next_lowrank_r=lowrank_r, next_inner_steps=steps)


class Qsr(Schedule):
    """Quadratic synchronisation rule: `rate(shared_steps)` is the inner learning rate there."""

    def __init__(
        self, lowrank_r: int, limits: tuple[int, int, int], alpha: float, rate: Callable[[int], float]
    ) -> None:
        """`limits`: inner steps at the start, at least, at most."""
        super().__init__(lowrank_r, limits[0])
        self._min, self._max = limits[1:]
        self._alpha = alpha
        self._rate = rate

    def decided(self, state: ScheduleState) -> ScheduleState:
        # Rounded, so that a last bit of the cosine, which machines may compute differently, does not decide.
        rate = float(f"{self._rate(state.shared_steps):.9e}")
        steps = min(self._max, qsr_inner_steps(self._alpha, rate, self._min))
        return replace(state, measured=(), next_inner_steps=steps)


def measured_rank(total: int, count: int, lowrank_r: int) -> int:
    """Mean of `count` matrices' effective ranks, whose sum is `total`, in 64ths of the start value, in integers only;
    64 without matrices."""
    whole = lowrank_r * count
    return min(64, (128 * total + whole) // (2 * whole)) if count else 64


def cosine_rate(lr: float, min_lr_ratio: float, total_steps: int, shared_step: int) -> float:
    """Inner learning rate at this place of the run, without warm-up."""
    progress = min(1.0, shared_step / total_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return lr * (min_lr_ratio + (1.0 - min_lr_ratio) * cosine)
