"""Phases of several sites around one engine: when the committed anchor reaches the sites' parameters.

    none     every boundary waits for its own round: theta <- x_{k+1}
    phase    DiLoCoX: the round of phase j commits at boundary j + 1 and moves the shared anchor; theta <- newest
             anchor, own progress lives on in u only. After phase 0 it is still x_0 (boot rule, ALGORITHMS 1.3 a)
    arrival  merge on arrival (ALGORITHMS 7): training goes on; tau steps later theta <- x_{k+1} + (theta - theta_b)
    eager    `phase` for the shared anchor, plus a local overlay per site with its own newest u at once: the overlay
             moves under the same linear optimizer with input w_i (u^t - u^{t-1}); theta <- x + overlay
`train(site, theta, first_step, num_steps)` changes float32[numel] `theta` in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dilocoxd.errors import ConfigError
from dilocoxd.outer.optimizers import Adam, zero_slots
from dilocoxd.outer.rounding import fp32, mean_weights
from tests.reference.engine import Engine, Offer

Delay = Literal["none", "phase", "arrival", "eager"]
Train = Callable[[str, Tensor, int, int], None]
Steps = int | Mapping[str, int]


@dataclass(slots=True)
class _Site:
    theta: Tensor
    base: Tensor
    steps_done: int = 0
    overlay: Tensor | None = None
    overlay_slots: list[Tensor] = field(default_factory=list)
    last_update: Tensor | None = None


class Phases:
    """Runs phases of all sites in step. `arrival_steps` (tau) counts for `arrival` only; per site if a mapping."""

    def __init__(self, engine: Engine, train: Train, delay: Delay, arrival_steps: Steps = 0) -> None:
        self.engine = engine
        self._train = train
        self._delay = delay
        self._arrival_steps = arrival_steps
        self._pending: Offer | None = None
        self.sites = {site: _Site(engine.anchor.clone(), engine.anchor.clone()) for site in engine.feedback}
        if delay == "eager":
            if isinstance(engine.recipe.optimizer, Adam):
                raise ConfigError("delay 'eager' needs a linear outer optimizer; use nesterov, heavy_ball or sgd")
            for state in self.sites.values():
                state.overlay = torch.zeros_like(engine.anchor)
                state.overlay_slots = zero_slots(engine.recipe.optimizer, engine.anchor.numel())
                state.last_update = torch.zeros_like(engine.anchor)
        self.num_phases = 0

    def run_phase(
        self, inner_steps: Steps, tokens: Mapping[str, int] | None = None, excluded: frozenset[str] = frozenset()
    ) -> None:
        """Train one phase at every site, offer it, and bring the anchor to the sites as the delay says.

        `excluded`: sites whose contribution does not make it into the round that commits in this call.
        """
        if self._delay == "arrival":
            self._merge_on_arrival(inner_steps, excluded)
        else:
            for site in self.sites:
                self._advance(site, _of(inner_steps, site))
        updates = {site: state.base - state.theta for site, state in self.sites.items()}
        weights = dict(zip(self.sites, mean_weights([(tokens or {}).get(s, 1) for s in self.sites]), strict=True))
        if self._delay == "none":
            self.engine.commit(self.engine.offer(updates, tokens), excluded)
        elif self._delay in {"phase", "eager"}:
            if self._pending is not None:
                self.engine.commit(self._pending, excluded)
            self._pending = self.engine.offer(updates, tokens)
        else:
            self._pending = self.engine.offer(updates, tokens)
        for site, state in self.sites.items():
            self._start_next(state, updates[site], weights[site])
        self.num_phases += 1

    def finish(self, excluded: frozenset[str] = frozenset()) -> None:
        """Commit what is still under way, so that the anchor holds everything that was offered."""
        if self._pending is not None:
            self.engine.commit(self._pending, excluded)
            self._pending = None

    def _advance(self, site: str, num_steps: int) -> None:
        state = self.sites[site]
        if num_steps:
            self._train(site, state.theta, state.steps_done, num_steps)
        state.steps_done += num_steps

    def _merge_on_arrival(self, inner_steps: Steps, excluded: frozenset[str]) -> None:
        at_boundary = {site: state.theta.clone() for site, state in self.sites.items()}
        taus = {site: min(_of(self._arrival_steps, site), _of(inner_steps, site)) for site in self.sites}
        for site, tau in taus.items():
            if self._pending is None:
                taus[site] = 0
            else:
                self._advance(site, tau)
        if self._pending is not None:
            self.finish(excluded)
            for site, state in self.sites.items():
                state.theta.sub_(at_boundary[site]).add_(self.engine.anchor)
                state.base.copy_(self.engine.anchor)
        for site, tau in taus.items():
            self._advance(site, _of(inner_steps, site) - tau)

    def _start_next(self, state: _Site, update: Tensor, weight: float) -> None:
        if self._delay == "arrival":
            return
        state.theta.copy_(self.engine.anchor)
        if state.overlay is not None and state.last_update is not None:
            fresh = (update - state.last_update).mul_(fp32(weight))
            self.engine.recipe.optimizer.step_(state.overlay, state.overlay_slots, fresh, self.num_phases)
            state.last_update.copy_(update)
            state.theta.add_(state.overlay)
        state.base.copy_(state.theta)


def _of(steps: Steps, site: str) -> int:
    return steps if isinstance(steps, int) else steps[site]
