"""Eager updates: what a site adds to the shared anchor for itself, so that its own newest progress is not a phase late.

    u^t = theta at the start of the phase - theta at its end        what is offered, and shared one phase later
    overlay <- Outer(overlay, (u^t - u^{t-1}) / M)                   the same linear outer optimizer, M contributors
    theta <- anchor + overlay
The shared anchor stays bit-identical everywhere; only the overlay differs. It starts from zero whenever the trainers
start, or take an anchor out of turn. Source: Eager Updates, arXiv 2502.12996; ALGORITHMS 4.3; the engine's form is
tests/reference/phases.py, delay `eager`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dilocoxd.outer.optimizers import OuterOptimizer, zero_slots
from dilocoxd.outer.rounding import fp32
from dilocoxd.trainer.parallel.mesh import ALONE, MeshPlace
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.wire.layout import Layout


class EagerParameters(FlatParameters):
    """Flat parameters of one rank with its slices of the overlay (on the CPU; five copies of the parameters in all)."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        layout: Layout,
        optimizer: OuterOptimizer,
        *,
        place: MeshPlace = ALONE,
    ) -> None:
        super().__init__(parameters, layout, place=place)
        self._optimizer = optimizer
        self._num_updates = 0
        self._overlays = [torch.zeros(held.extent.numel) for held in self._held]
        self._states = [zero_slots(optimizer, overlay.numel()) for overlay in self._overlays]
        self._last_updates = [torch.zeros_like(overlay) for overlay in self._overlays]
        self._updates = [torch.zeros_like(overlay) for overlay in self._overlays]

    def replace(self, anchor: Tensor) -> None:
        """Parameters and base <- anchor, without overlay."""
        for tensors in (self._overlays, self._last_updates, self._updates, *self._states):
            for tensor in tensors:
                tensor.zero_()
        super().replace(anchor)

    @torch.no_grad()
    def subtract_from(self, phase: Tensor) -> None:
        """phase <- (phase + overlay) - parameters: the phase began at anchor + overlay."""
        for held, overlay in zip(self._held, self._overlays, strict=True):
            if held.is_written:
                held.of(phase).add_(overlay.view(held.extent.shape))
        super().subtract_from(phase)
        self.note_offered(phase)

    @torch.no_grad()
    def note_offered(self, phase: Tensor) -> None:
        """Remember what was offered: all replicas read what one of them wrote, so their overlays stay equal."""
        for held, update in zip(self._held, self._updates, strict=True):
            update.view(held.extent.shape).copy_(held.of(phase))

    @torch.no_grad()
    def begin(self, anchor: Tensor, num_contributors: int) -> None:
        """Move the overlay by the phase just closed; then parameters and base <- anchor + overlay.

        `num_contributors`: of the newest entry, with those that it was short of (outer/rounding.py: participation);
        0 if it is not known, then the overlay only coasts.
        """
        weight = fp32(1.0 / num_contributors) if num_contributors else 0.0
        own = zip(self._held, self._base, self._overlays, self._states, self._updates, self._last_updates, strict=True)
        for held, base, overlay, state, update, last in own:
            fresh = (update - last).mul_(weight)
            self._optimizer.step_(overlay, state, fresh, self._num_updates)
            if num_contributors:
                last.copy_(update)
            held.part.copy_(held.of(anchor) + overlay.view(held.extent.shape))
            base.copy_(held.part)
        self._num_updates += 1
