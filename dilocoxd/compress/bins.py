"""int8 with bin means: 256 equal bins over mean +- 6 standard deviations, each decoded to the mean of what fell in it.

The codec of INTELLECT-1 (prime, OpenDiLoCo line). Byte layout of n values, pages of 131,072: 256 fp32 levels per page
(unused bins 0), then n bytes, the bin of each value. An all-equal page has one bin, so zeros decode to zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dilocoxd.compress.codec import MAGNITUDE_MAX, Codec, bad_payload, check_encodable, load, store

PAGE = 1 << 17
"""Values that share their levels: part of the format."""
BINS = 256
SIGMAS = 6.0
LEVEL_BYTES = 4 * BINS


class BinMeans(Codec):
    """Adaptive levels for one page at a time."""

    name = "int8bins"

    def payload_bytes(self, numel: int) -> int:
        return -(-numel // PAGE) * LEVEL_BYTES + numel

    def chunks(self, numel: int) -> Iterator[tuple[int, int]]:
        for start in range(0, numel, PAGE):
            yield start, min(start + PAGE, numel)

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        check_encodable(torch.stack(values.aminmax()).abs_())
        wide = values.double()
        distances = wide - wide.mean()
        squares = torch.mul(distances, distances)
        deviation = float(squares.mean().sqrt())
        step = 2 * SIGMAS * deviation / BINS or 1.0
        distances.div_(step).add_(BINS / 2).clamp_(0, BINS - 1)
        bins = distances.to(torch.int32).to(torch.uint8)  # by way of int32: four times faster
        counts = torch.bincount(bins, minlength=BINS)
        sums = torch.bincount(bins, weights=wide, minlength=BINS)
        levels = torch.where(counts > 0, sums / counts.clamp(min=1), 0.0).float()
        page = start // PAGE * LEVEL_BYTES
        store(levels, out[page : page + LEVEL_BYTES])
        first = -(-numel // PAGE) * LEVEL_BYTES + start
        out[first : first + values.numel()].copy_(bins)

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        page = start // PAGE * LEVEL_BYTES
        levels = load(payload[page : page + LEVEL_BYTES], torch.float32)
        if not bool((levels.abs() <= MAGNITUDE_MAX).all().item()):
            raise bad_payload("a bin level is NaN, Inf or above 2**64 in magnitude")
        first = -(-numel // PAGE) * LEVEL_BYTES + start
        torch.index_select(levels, 0, payload[first : first + out.numel()].to(torch.int32), out=out)
