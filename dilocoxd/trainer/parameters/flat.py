"""Moves parameters between the model and the shared flat vectors (ANCHOR, PHASE), slice by slice of this rank.

The buffers are float32 in canonical order (wire/layout.py). A rank touches only the slices of its own
parameters, of cut ones the rows and columns that lie here: nobody ever gathers a model.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from dilocoxd.errors import WorkerError
from dilocoxd.trainer.parallel.local import Extent, extent_of, is_cut_by_tensor, local
from dilocoxd.trainer.parallel.mesh import ALONE, MeshPlace
from dilocoxd.trainer.parameters.copies import copies_for
from dilocoxd.wire.layout import Layout

PIECE: Final = 1 << 20
"""Values that are added at a time."""


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """A parameter of which something lies here."""

    parameter: nn.Parameter
    start: int
    """Of the parameter in the flat vector."""
    extent: Extent
    is_written: bool
    """Whether this rank writes it; else another one that holds the same values does."""
    is_moved: bool
    """Whether this rank moves its rows between machines; else the first of those that share them does."""

    @property
    def part(self) -> Tensor:
        """What lies here."""
        return local(self.parameter)

    @property
    def rows(self) -> slice:
        """Of the flat vector: all rows of which something lies here."""
        first, stop = self.extent.rows_stretch
        return slice(self.start + first, self.start + stop)

    def of(self, vector: Tensor) -> Tensor:
        """The same part of a flat vector, sharing its memory, in its shape."""
        return self.extent.in_rows(vector[self.rows])


class FlatParameters:
    """Local parameters and where they lie in the flat vector. ``base`` is what own progress is measured from."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        layout: Layout,
        *,
        place: MeshPlace = ALONE,
    ) -> None:
        """`place`: of this rank; of those that hold the same values one writes them, and one moves them.

        Raises ConfigError (by the layout) for an unknown name and WorkerError for a shape that does not fit.
        """
        self._numel = layout.numel
        self.is_writer = place.copy == 0
        self._held: list[HeldParameter] = []
        for name, param in parameters:
            (span,) = layout.spans([name])
            if tuple(param.shape) != layout.shape(name):
                raise WorkerError(f"{name} has shape {tuple(param.shape)}, the layout says {layout.shape(name)}")
            extent = extent_of(param)
            if extent.numel:
                is_first = place.slice == 0
                is_ours = is_first or is_cut_by_tensor(param)
                is_moved = is_first or (is_ours and extent.columns == extent.width)
                self._held.append(HeldParameter(param, span.start, extent, self.is_writer and is_ours, is_moved))
        self._base = [torch.zeros_like(held.part) for held in self._held]
        self._copies = copies_for(self._base)

    def stretches(self) -> list[tuple[int, int]]:
        """[start, stop) in the flat vector of the rows that this rank moves between machines; neighbours are one."""
        found: list[tuple[int, int]] = []
        for rows in sorted((one.rows for one in self._held if one.is_moved), key=lambda rows: rows.start):
            first = found.pop()[0] if found and found[-1][1] == rows.start else rows.start
            found.append((first, rows.stop))
        return found

    def view(self, buffer: mmap.mmap) -> Tensor:
        """The whole shared buffer as float32 [numel]; no copy. Raises WorkerError if its size is another."""
        if len(buffer) < self._numel * 4:
            raise WorkerError(f"shared buffer has {len(buffer)} bytes, the model needs {self._numel * 4}")
        return torch.frombuffer(buffer, dtype=torch.float32, count=self._numel)

    def pin(self, vector: Tensor) -> None:
        """`vector` lies in shared memory, and what lies here of it will be taken again and again.

        Not for PHASE: its pages are given back when it was formed, and a device would go on with those of before.
        """
        self._copies.pin(vector, [(held.rows.start, held.rows.stop) for held in self._held])

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
        self._copies.upload((held.of(anchor), held.part) for held in self._held)
        for held, base in zip(self._held, self._base, strict=True):
            base.copy_(held.part)

    def begin(self, anchor: Tensor, num_contributors: int) -> None:
        """A phase begins from this anchor; `num_contributors` of its entry matter to eager updates only."""
        self.replace(anchor)

    @torch.no_grad()
    def merge(self, anchor: Tensor) -> None:
        """Parameters <- anchor + (parameters - base): the new anchor, own progress kept. Then base <- anchor.

        With that base a second merge in the same phase keeps the same progress again (ALGORITHMS.md section 7).
        """
        for held, base in zip(self._held, self._base, strict=True):
            held.part.sub_(base)
        self._copies.upload((held.of(anchor), base) for held, base in zip(self._held, self._base, strict=True))
        for held, base in zip(self._held, self._base, strict=True):
            held.part.add_(base)

    @torch.no_grad()
    def mark_base(self) -> None:
        """Base <- parameters: a boundary was closed and training goes on from here."""
        for held, base in zip(self._held, self._base, strict=True):
            base.copy_(held.part)

    @torch.no_grad()
    def subtract_from(self, phase: Tensor) -> None:
        """phase -= parameters in the slices that lie here: the base anchor becomes the pseudo-gradient."""
        written = ((held.of(phase), held.part) for held in self._held if held.is_written)
        self._copies.download(written, Tensor.sub_)

    def note_offered(self, phase: Tensor) -> None:
        """The rank that writes our slices of `phase` has made them the pseudo-gradient."""

    @torch.no_grad()
    def save(self) -> list[Tensor]:
        """Copies of the parameters, for `restore` after an evaluation of other ones."""
        return [held.part.clone() for held in self._held]

    @torch.no_grad()
    def restore(self, saved: list[Tensor]) -> None:
        """Undo `load`."""
        for held, copy in zip(self._held, saved, strict=True):
            held.part.copy_(copy)

    @torch.no_grad()
    def load(self, vector: Tensor, more: Callable[[int, int], Tensor] | None = None) -> None:
        """Parameters <- vector + more; the base stays. `more` makes float32 [stop - start] of its own each time."""
        if more is None:
            self._copies.upload((held.of(vector), held.part) for held in self._held)
            return
        for held in self._held:
            for values, extent, start in _pieces(held):
                rows = slice(start, start + extent.rows * extent.width)
                values.copy_(extent.in_rows(more(rows.start, rows.stop).add_(vector[rows])).view(values.shape))


def _pieces(held: HeldParameter) -> Iterator[tuple[Tensor, Extent, int]]:
    """Of what lies here pieces that share its memory, each as an extent of rows, and where these begin in the vector.

    Not to need a copy of the largest parameter; one that lies otherwise in memory goes whole.
    """
    part, extent = held.part, held.extent
    if not part.is_contiguous():
        yield part, extent, held.rows.start
        return
    if extent.columns == extent.width:
        # Rows may be longer than a piece, and are nothing to look at: values of one column.
        extent = Extent((part.numel(),), 0, part.numel(), 0, 1)
    values, step = part.view(extent.rows, extent.columns), max(1, PIECE // extent.width)
    for first in range(0, extent.rows, step):
        rows = min(step, extent.rows - first)
        piece = replace(extent, first_row=first, rows=rows)
        yield values[first : first + rows], piece, held.rows.start + first * extent.width
