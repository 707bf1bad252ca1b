"""Prints one digest per codec and optimizer: payload, decoded values, mean, anchor after outer steps.

Inputs are made with integer arithmetic only, so that they cannot differ between vector widths.
"""

from __future__ import annotations

import hashlib
import sys

import torch
from torch import Tensor

from dilocoxd.compress.columns import ColumnInt, exact_product, spread_for
from dilocoxd.compress.lowrank import pivoted_rank
from dilocoxd.outer.optimizers import outer_from_name, zero_slots
from dilocoxd.outer.rounding import mean_weights
from tests.reference.whole_segments import reduce_segment, settle_residual_
from tests.unit.compress.cases import VARIANTS, make

NUMEL = (1 << 16) + 4096 + 333
"""Above torch's 32,768 elements per thread, so that two threads do share the work."""


def noise(seed: int) -> Tensor:
    """Uneven pseudo-random values around 1e-3, of integer operations and one exact conversion each."""
    state = (torch.arange(NUMEL, dtype=torch.int64) * 2654435761 + seed * 40503) % (1 << 31)
    state = (state * 1103515245 + 12345) % (1 << 31)
    magnitude = (state % 65536 - 32768).to(torch.float32)
    return magnitude * torch.pow(torch.tensor(2.0), (torch.arange(NUMEL) // 4096 % 7 - 24).to(torch.float32))


def digest(*tensors: Tensor) -> str:
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()[:32]


def lowrank_product(values: Tensor) -> list[Tensor]:
    """Decoded factors of low rank 60 and their product."""
    decoded = []
    for length in (700, 900):
        codec = ColumnInt(4, 128, length, spread_for(4, 60))
        payload = torch.zeros(codec.payload_bytes(60 * length), dtype=torch.uint8)
        codec.encode(values[: 60 * length].clone(), payload)
        decoded.append(torch.empty(60 * length))
        codec.decode(payload, decoded[-1])
    product = torch.empty(700, 900)
    exact_product(decoded[0].view(60, 700), decoded[1].view(60, 900), product)
    return [*decoded, product]


def main() -> None:
    updates = [noise(seed) for seed in range(3)]
    print("input", digest(*updates))
    for label in VARIANTS:
        codec = make(label)
        payloads = [torch.zeros(codec.payload_bytes(NUMEL), dtype=torch.uint8) for _ in updates]
        for update, payload in zip(updates, payloads, strict=True):
            codec.encode(update, payload)
        weights = mean_weights([3, 5, 11])
        result, values, residual = torch.zeros_like(payloads[0]), torch.empty(NUMEL), noise(9) * 2.0**-6
        reduce_segment(codec, payloads, weights, residual, values, result)
        settle_residual_(codec, payloads, weights, residual, result)
        delta = torch.empty(NUMEL)
        codec.decode(result, delta)
        print(label, digest(*payloads), digest(values, residual, result, delta))
    print("low rank product", digest(*lowrank_product(updates[0])))
    print("effective ranks", [pivoted_rank(noise(30 + n)[:20_000].view(20, 1000), 0.3) for n in range(4)])
    for name in ("sgd", "heavy_ball", "nesterov", "adam"):
        optimizer = outer_from_name(name, 0.4, 0.0 if name == "sgd" else 0.9)
        anchor, slots = noise(20), zero_slots(optimizer, NUMEL)
        for step in range(4):
            optimizer.step_(anchor, slots, updates[step % 3], step)
        print(name, digest(anchor, *slots))


if __name__ == "__main__":
    main()
    sys.exit(0)
