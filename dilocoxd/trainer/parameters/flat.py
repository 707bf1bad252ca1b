"""Moves parameters between the model and the shared flat vectors (ANCHOR, PHASE), slice by slice of this rank.

The buffers are float32 in canonical order (wire/layout.py). A rank touches only the slices of its own
parameters, of sharded ones the rows that lie here: nobody ever gathers a model.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import Tensor, nn

from dilocoxd.errors import WorkerError
from dilocoxd.trainer.parallel.local import local, stretch
from dilocoxd.wire.layout import Layout

PIECE: Final = 1 << 20
"""Values that are added at a time."""


class FlatParameters:
    """Local parameters and where they lie in the flat vector. ``base`` is what own progress is measured from."""

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], layout: Layout, *, is_writer: bool = True
    ) -> None:
        """`is_writer`: False where another rank holds the same values and writes them.

        Raises ConfigError (by the layout) for an unknown name and WorkerError for a shape that does not fit.
        """
        self._numel = layout.numel
        self.is_writer = is_writer
        self._held: list[tuple[nn.Parameter, int, int]] = []
        for name, param in parameters:
            (span,) = layout.spans([name])
            if tuple(param.shape) != layout.shape(name):
                raise WorkerError(f"{name} has shape {tuple(param.shape)}, the layout says {layout.shape(name)}")
            start, stop = stretch(param)
            if start < stop:
                self._held.append((param, span.start + start, span.start + stop))
        self._base = [torch.zeros_like(param) for param, _, _ in self._slots]

    @property
    def _slots(self) -> list[tuple[Tensor, int, int]]:
        """What lies here of each parameter, and its [start, stop) in the flat vector."""
        return [(local(param), start, stop) for param, start, stop in self._held]

    def stretches(self) -> list[tuple[int, int]]:
        """[start, stop) in the flat vector of all that lies here; neighbours are one."""
        found: list[tuple[int, int]] = []
        for _, start, stop in sorted(self._held, key=lambda held: held[1]):
            first = found.pop()[0] if found and found[-1][1] == start else start
            found.append((first, stop))
        return found

    def view(self, buffer: mmap.mmap) -> Tensor:
        """The whole shared buffer as float32 [numel]; no copy. Raises WorkerError if its size is another."""
        if len(buffer) < self._numel * 4:
            raise WorkerError(f"shared buffer has {len(buffer)} bytes, the model needs {self._numel * 4}")
        return torch.frombuffer(buffer, dtype=torch.float32, count=self._numel)

    def take(self, anchor: Tensor, how: str, mixed_round: int | None = None) -> None:
        """Carry out a TakeAnchor (wire/local/trainer.py): `replace`, `merge` or `mix`. Raises WorkerError."""
        if how == "replace":
            self.replace(anchor)
        elif how == "merge":
            self.merge(anchor)
        elif how == "mix":
            self.mix(anchor, mixed_round)
        else:
            raise WorkerError(f"TakeAnchor.how is {how!r}")

    def mix(self, anchor: Tensor, mixed_round: int | None) -> None:
        """Only fragments that have their turn are mixed (mixing.py). Raises WorkerError: these here have no turns."""
        raise WorkerError(f"round {mixed_round} cannot be mixed into {anchor.numel()} values: they have no fragments")

    @torch.no_grad()
    def replace(self, anchor: Tensor) -> None:
        """Parameters and base <- anchor."""
        for (param, start, stop), base in zip(self._slots, self._base, strict=True):
            param.copy_(anchor[start:stop].view(param.shape))
            base.copy_(param)

    def begin(self, anchor: Tensor, num_contributors: int) -> None:
        """A phase begins from this anchor; `num_contributors` of its entry matter to eager updates only."""
        self.replace(anchor)

    @torch.no_grad()
    def merge(self, anchor: Tensor) -> None:
        """Parameters <- anchor + (parameters - base): the new anchor, own progress kept. Then base <- anchor.

        With that base a second merge in the same phase keeps the same progress again (ALGORITHMS.md section 7).
        """
        for (param, start, stop), base in zip(self._slots, self._base, strict=True):
            param.sub_(base)
            base.copy_(anchor[start:stop].view(param.shape))
            param.add_(base)

    @torch.no_grad()
    def mark_base(self) -> None:
        """Base <- parameters: a boundary was closed and training goes on from here."""
        for (param, _, _), base in zip(self._slots, self._base, strict=True):
            base.copy_(param)

    @torch.no_grad()
    def subtract_from(self, phase: Tensor) -> None:
        """phase -= parameters in the slices that lie here: the base anchor becomes the pseudo-gradient."""
        for param, start, stop in self._slots if self.is_writer else ():
            phase[start:stop].sub_(param.reshape(-1).to("cpu", torch.float32))

    def note_offered(self, phase: Tensor) -> None:
        """The rank that writes our slices of `phase` has made them the pseudo-gradient."""

    @torch.no_grad()
    def save(self) -> list[Tensor]:
        """Copies of the parameters, for `restore` after an evaluation of other ones."""
        return [param.clone() for param, _, _ in self._slots]

    @torch.no_grad()
    def restore(self, saved: list[Tensor]) -> None:
        """Undo `load`."""
        for (param, _, _), copy in zip(self._slots, saved, strict=True):
            param.copy_(copy)

    @torch.no_grad()
    def load(self, vector: Tensor, more: Callable[[int, int], Tensor] | None = None) -> None:
        """Parameters <- vector + more; the base stays. `more` makes float32 [stop - start] of its own each time."""
        for param, start, stop in self._slots:
            if more is None:
                param.copy_(vector[start:stop].view(param.shape))
                continue
            # Piece by piece, not to need a copy of the largest parameter; one that lies otherwise in memory goes whole.
            values, step = (param.view(-1), PIECE) if param.is_contiguous() else (param, stop - start)
            for first in range(start, stop, step):
                last = min(first + step, stop)
                piece = values[first - start : last - start] if values.dim() == 1 else values
                piece.copy_(more(first, last).add_(vector[first:last]).view(piece.shape))
