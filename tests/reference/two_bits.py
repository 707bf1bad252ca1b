"""The int2 payload of float32[n], step by step over whole tensors, as compress/twobit.py must write it."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 4096
SCALE_MIN = 2.0**-64


def int2_payload(values: Tensor, block: int) -> bytes:
    """Scales, then codes (chapter 08, C3 and C4)."""
    rows = torch.nn.functional.pad(values, (0, -values.numel() % block)).view(-1, block)
    maxima = rows.abs().amax(dim=1)
    is_used = maxima >= SCALE_MIN
    unit = rows / torch.where(is_used, maxima, 1.0).unsqueeze(1)
    rms = (tree_sum(unit * unit) / block).sqrt().unsqueeze(1)
    codes = (unit >= rms).float() + (unit >= 0).float() + (unit >= -rms).float()
    levels = codes * 2.0 - 3.0
    fitted = tree_sum(unit * levels) / tree_sum(levels * levels) * torch.where(is_used, maxima, 0.0)
    scales = torch.where(fitted >= SCALE_MIN, fitted, 0.0).bfloat16()
    payload = bytes(scales.view(torch.uint8).tolist())
    flat = codes.view(-1)[: values.numel()].to(torch.uint8)
    for start in range(0, flat.numel(), GROUP):
        group = flat[start : start + GROUP]
        width = -(-group.numel() // 4)
        quarters = torch.nn.functional.pad(group, (0, 4 * width - group.numel())).view(4, width)
        packed = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
        payload += bytes(packed.tolist())
    return payload


def int2_values(payload: bytes, numel: int, block: int) -> Tensor:
    """float32[numel] of a payload, by hand."""
    num_blocks = -(-numel // block)
    scales = torch.frombuffer(bytearray(payload[: 2 * num_blocks]), dtype=torch.bfloat16).float()
    levels: list[int] = []
    packed = payload[2 * num_blocks :]
    while len(levels) < numel:
        count = min(GROUP, numel - len(levels))
        width = -(-count // 4)
        levels += [2 * (packed[j % width] >> 2 * (j // width) & 3) - 3 for j in range(count)]
        packed = packed[width:]
    return torch.tensor(levels, dtype=torch.float32) * scales.repeat_interleave(block)[:numel]


def tree_sum(rows: Tensor) -> Tensor:
    """Row sums by halving; the row length is a power of two."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]
