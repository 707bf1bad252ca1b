"""This rank's part of a tensor that several ranks hold in parts: FSDP2 cuts rows, tensor parallelism rows or columns.

Tensors that are whole are their own part, so nobody else needs to know whether a stage is cut, and a site that cuts
nothing imports nothing of torch.distributed.tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

TENSOR: Final = "tensor"
"""Dimension of the mesh along which ranks hold parts of single matrices, and compute on the same sequences."""


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """The part here, sharing its memory; of a whole tensor all of it. May have no elements."""
    part: Any = tensor
    return (part.to_local() if is_sharded(tensor) else tensor).detach()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is torch's DTensor."""
    return hasattr(tensor, "to_local")


def is_cut_by_tensor(tensor: Tensor) -> bool:
    """Whether the ranks along the dimension `tensor` hold different parts of it; else each of them has the same."""
    sharded: Any = tensor
    if not is_sharded(tensor) or TENSOR not in sharded.device_mesh.mesh_dim_names:
        return False
    return _cut_dimension(sharded.placements[sharded.device_mesh.mesh_dim_names.index(TENSOR)]) is not None


@dataclass(frozen=True, slots=True)
class Extent:
    """Rows [first_row, first_row + rows) and columns likewise of a tensor whose first dimension are its rows; a column
    is one place in all that a row holds."""

    whole: tuple[int, ...]
    """Shape of the tensor."""
    first_row: int
    rows: int
    first_column: int
    columns: int

    @classmethod
    def whole_of(cls, shape: tuple[int, ...]) -> Extent:
        """All of a tensor of this shape."""
        return cls(shape, 0, shape[0] if shape else 1, 0, math.prod(shape[1:]))

    @property
    def width(self) -> int:
        """Values of a whole row."""
        return math.prod(self.whole[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is here; a tensor whose columns are cut is a matrix."""
        if not self.whole:
            return ()
        return (self.rows, *self.whole[1:]) if self.columns == self.width else (self.rows, self.columns)

    @property
    def numel(self) -> int:
        """Values here."""
        return self.rows * self.columns

    @property
    def rows_stretch(self) -> tuple[int, int]:
        """[start, stop) in the tensor's flat values of the rows that it has values of, with all their columns."""
        return self.first_row * self.width, (self.first_row + self.rows) * self.width

    def of_matrix(self, whole: Tensor) -> Tensor:
        """What is here of a matrix, sharing its memory."""
        return whole[self.first_row : self.first_row + self.rows, self.first_column : self.first_column + self.columns]

    def in_rows(self, flat: Tensor) -> Tensor:
        """What is here of the flat values of its rows, sharing their memory, in its shape."""
        if self.columns == self.width:
            return flat.view(self.shape)
        return flat.view(self.rows, self.width)[:, self.first_column : self.first_column + self.columns]

    def within(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of what is here, as a matrix, that lie in [start, stop) of the tensor's flat values."""
        (first, head), (last, tail) = divmod(start, self.width), divmod(stop, self.width)
        pieces = [(first, first + 1, head, tail)]
        if first < last:
            ends = (first, first + 1, head, self.width), (last, last + 1, 0, tail)
            pieces = [*ends, (first + 1, last, 0, self.width)]
        for top, bottom, left, right in pieces:
            rows = _inside(top, bottom, self.first_row, self.rows)
            columns = _inside(left, right, self.first_column, self.columns)
            if rows.start < rows.stop and columns.start < columns.stop:
                yield rows, columns


def _inside(start: int, stop: int, first: int, count: int) -> slice:
    return slice(max(start - first, 0), min(stop - first, count))


def extent_of(tensor: Tensor) -> Extent:
    """Which part of the tensor lies here. Raises AssertionError for a cut that is not ours."""
    whole = tuple(tensor.shape)
    first, count = [0] * len(whole), list(whole)
    if is_sharded(tensor):
        sharded: Any = tensor
        coordinates, sizes = sharded.device_mesh.get_coordinate(), sharded.device_mesh.shape
        # Tensor parallel layers are cut first, and they are the innermost dimension of the mesh: FSDP2 then cuts rows
        # of what they left. torch's own offsets for that (_StridedShard) are not those of uneven rows.
        for place, size, placement in reversed(list(zip(coordinates, sizes, sharded.placements, strict=True))):
            dim = _cut_dimension(placement)
            if dim is not None:
                each = -(-count[dim] // size)
                skipped = min(each * place, count[dim])
                first[dim], count[dim] = first[dim] + skipped, min(each, count[dim] - skipped)
        assert tuple(local(tensor).shape) == tuple(count), f"{tuple(local(tensor).shape)} here, not {count}"
    if len(whole) > 1 and count[1] < whole[1]:
        assert len(whole) == 2, "columns of something that is no matrix are cut"
        return Extent(whole, first[0], count[0], first[1], count[1])
    return replace(Extent.whole_of(whole), first_row=first[0], rows=count[0]) if whole else Extent.whole_of(whole)


def _cut_dimension(placement: Any) -> int | None:
    return getattr(placement, "dim", None)


def place_of(tensor: Tensor) -> tuple[Tensor, int]:
    """The part here, which is whole rows, and where it begins in the flat values of the whole."""
    return local(tensor), min(extent_of(tensor).rows_stretch[0], tensor.numel())
