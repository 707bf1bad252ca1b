"""This rank's part of a tensor that several ranks hold in parts (FSDP2 cuts along the first dimension).

Tensors that are whole are their own part, so nobody else needs to know whether a stage is sharded, and a site that has
no shards imports nothing of torch.distributed.tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """The part here, sharing its memory; of a whole tensor all of it. May have no elements."""
    part: Any = tensor
    return (part.to_local() if is_sharded(tensor) else tensor).detach()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is torch's DTensor."""
    return hasattr(tensor, "to_local")


def first_row(tensor: Tensor) -> int:
    """Place of the part here along the first dimension of the whole."""
    if not is_sharded(tensor):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    _, offsets = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return int(offsets[0])


def place_of(tensor: Tensor) -> tuple[Tensor, int]:
    """The part here, and where it begins in the flat values of the whole."""
    return local(tensor), stretch(tensor)[0]


def stretch(tensor: Tensor) -> tuple[int, int]:
    """[start, stop) of the part here in the flat values of the whole: rows follow each other, so it is one stretch."""
    part = local(tensor)
    row = tensor.numel() // tensor.shape[0] if tensor.dim() else 1
    start = min(first_row(tensor) * row, tensor.numel())
    return start, start + part.numel()
