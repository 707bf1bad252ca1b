"""Streaming: takes a new anchor fragment by fragment, since only a part of it has moved.

    exchanged by the entry with our contribution:   theta <- alpha theta + (1 - alpha) anchor
    everything else:                                theta <- theta + (anchor - anchor taken before)
The mean holds our progress on the one; on what others moved without us it does not, so there all of it is kept. Where
the anchor did not move nothing changes, and that progress is offered when its fragment has its turn. Source: Streaming
DiLoCo, arXiv 2501.18512; compared with the form of the paper by tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from dilocoxd.compress.fragments import stretch
from dilocoxd.outer.rounding import fp32
from dilocoxd.trainer.parallel.mesh import ALONE, MeshPlace
from dilocoxd.trainer.parameters.flat import FlatParameters, HeldParameter
from dilocoxd.wire.layout import Layout


class MixedParameters(FlatParameters):
    """Flat parameters of one rank; the base is always the anchor that was taken last."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        layout: Layout,
        num_fragments: int,
        alpha: float,
        *,
        place: MeshPlace = ALONE,
    ) -> None:
        super().__init__(parameters, layout, place=place)
        self._segments = layout.segments
        self._num_fragments = num_fragments
        self._alpha = alpha

    def mark_base(self) -> None:
        """A boundary was closed: the base stays, no anchor was taken."""

    @torch.no_grad()
    def mix(self, anchor: Tensor, mixed_round: int | None) -> None:
        """Take `anchor`; `mixed_round`: the entry since the last one that has our contribution."""
        for held, base in zip(self._held, self._base, strict=True):
            param, newest = held.part, held.of(anchor).to(base.device)
            theta, fresh = (part.view(held.extent.rows, -1) for part in (param, newest.contiguous()))
            mixed = [(here, theta[here].clone()) for here in self._exchanged(held, mixed_round)]
            param.add_(newest - base)
            for here, own in mixed:
                mix_(own, fresh[here], self._alpha)
                theta[here] = own
            base.copy_(newest)

    def _exchanged(self, held: HeldParameter, mixed_round: int | None) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of what lies here of a parameter that an entry moved."""
        if mixed_round is None:
            return
        for segment in self._segments:
            part = stretch(segment, self._num_fragments, mixed_round)
            first = max(held.rows.start, segment.start + part.start)
            last = min(held.rows.stop, segment.start + part.stop)
            if first < last:
                yield from held.extent.within(first - held.start, last - held.start)


def mix_(theta: Tensor, anchor: Tensor, alpha: float) -> None:
    """theta <- alpha theta + (1 - alpha) anchor; the ends are exact."""
    if alpha == 0:
        theta.copy_(anchor)
    elif alpha < 1:
        theta.mul_(fp32(alpha))
        theta.add_(anchor.mul(fp32(1 - alpha)))
