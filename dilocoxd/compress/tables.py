"""Block codecs with few unequal levels: E3M0 (4 bits) and 2-bit.

value = scale of the block * level of the code. Byte layout of n values, blocks of B: ceil(n / B) scales, then codes.
`e3m0`  scale: 1 byte, `pow2` of blockint, the power of two nearest to max|x|. Code: one nibble, sign in bit 3, e in
        bits 0-2; level 0 for e = 0, else 2**(e - 7). Nibbles as in blockint int4 (split halves of 4096), filler 8
        (= -0). Streaming DiLoCo (arXiv 2501.18512) sends outer gradients in this format.
`int2`  scale: 2 bytes, bf16. Code: two bits, levels -3, -1, 1, 3 for codes 0..3; groups of 4096 values (the last one
        shorter, t values) take q = ceil(t / 4) bytes, byte j with values j, q + j, 2q + j, 3q + j from low to high
        bits, filler code 0. The scale is the least-squares fit to the chosen levels, so the codec always contracts;
        a zero block has scale 0. Meant for use with error feedback (MuLoCo, arXiv 2505.23725).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dilocoxd.compress.blockint import (
    GROUP,
    SCALE_MIN,
    decode_scales,
    encode_scales,
    inverse_of,
    pack_nibbles,
    padded,
    unpack_nibbles,
)
from dilocoxd.compress.codec import CHUNK, Codec, check_encodable, store

MANTISSA_BITS = 23
EXPONENT_BIAS = 127
GAUSSIAN_STEP = 0.5
"""int2: distance of the inner levels from 0 in units of the block's root mean square; Lloyd-Max for a Gaussian."""


class E3M0(Codec):
    """Sign and a power of two from 2**-6 to 1 of the block's largest magnitude."""

    name = "e3m0"
    chunk = CHUNK // 4

    def __init__(self, block: int) -> None:
        self._block = block

    def payload_bytes(self, numel: int) -> int:
        return -(-numel // self._block) + -(-numel // 2)

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        rows = padded(values, self._block).view(-1, self._block)
        magnitudes = rows.abs()
        maxima = magnitudes.amax(dim=1)
        check_encodable(maxima)
        nearest = ((maxima.view(torch.int32) + (1 << 22) - 1) >> MANTISSA_BITS << MANTISSA_BITS).view(torch.float32)
        scales, raw = encode_scales(nearest, 1, "pow2")
        store(raw, out[start // self._block : start // self._block + raw.numel()])
        relative = magnitudes.mul_(inverse_of(scales).unsqueeze(1))
        exponents = (relative.view(torch.int32) + (1 << 22) - 1) >> MANTISSA_BITS
        levels = (exponents - (EXPONENT_BIAS - 7)).clamp_(1, 7)
        levels = torch.where(relative > 2.0**-7, levels, 0)
        codes = levels.add_((rows < 0).to(torch.int32), alpha=8).sub_(8).to(torch.float32).view(-1)
        pack_nibbles(codes[: values.numel()], self._codes(out, start, values.numel(), numel))

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        first, count = start // self._block, -(-out.numel() // self._block)
        scales = decode_scales(payload[first : first + count], "pow2")
        codes = unpack_nibbles(self._codes(payload, start, out.numel(), numel), out.numel())
        out.copy_(_E3M0_LEVELS[codes.to(torch.int32).add_(8)])
        multiply_blocks_(out, scales, self._block)

    def _codes(self, payload: Tensor, start: int, count: int, numel: int) -> Tensor:
        first = -(-numel // self._block) + start // 2
        return payload[first : first + -(-count // 2)]


class Int2(Codec):
    """Four levels at -3, -1, 1, 3 times the block's scale."""

    name = "int2"
    chunk = CHUNK // 4

    def __init__(self, block: int) -> None:
        self._block = block

    def payload_bytes(self, numel: int) -> int:
        return 2 * -(-numel // self._block) + -(-numel // 4)

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        rows = padded(values, self._block).view(-1, self._block)
        maxima = rows.abs().amax(dim=1)
        check_encodable(maxima)
        safe = torch.where(maxima >= SCALE_MIN, maxima, 1.0).unsqueeze(1)
        unit = rows / safe
        rms = tree_sum(unit * unit).div_(self._block).sqrt_().mul_(GAUSSIAN_STEP * 2)
        codes = (unit >= rms.unsqueeze(1)).to(torch.float32) + (unit >= 0).to(torch.float32)
        codes.add_((unit >= -rms.unsqueeze(1)).to(torch.float32))
        levels = codes * 2.0 - 3.0
        fitted = tree_sum(unit * levels) / tree_sum(levels * levels)
        fitted.mul_(torch.where(maxima >= SCALE_MIN, maxima, 0.0))
        _, raw = encode_scales(fitted, 1, "bf16")
        first = start // self._block * 2
        store(raw, out[first : first + raw.numel() * 2])
        self._pack(codes.view(-1)[: values.numel()].to(torch.uint8), self._codes(out, start, values.numel(), numel))

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        first, count = start // self._block, -(-out.numel() // self._block)
        scales = decode_scales(payload[2 * first : 2 * (first + count)], "bf16")
        packed = self._codes(payload, start, out.numel(), numel)
        full = out.numel() // GROUP
        for rows, source in _groups(out, packed, full):
            quarter = source.shape[1]
            for part in range(4):
                target = rows[:, part * quarter : (part + 1) * quarter]
                target.copy_(((source >> (2 * part)) & 3)[:, : target.shape[1]])
        out.mul_(2.0)
        out.sub_(3.0)
        multiply_blocks_(out, scales, self._block)

    def _codes(self, payload: Tensor, start: int, count: int, numel: int) -> Tensor:
        first = 2 * -(-numel // self._block) + start // 4
        return payload[first : first + -(-count // 4)]

    @staticmethod
    def _pack(codes: Tensor, out: Tensor) -> None:
        full = codes.numel() // GROUP
        for rows, target in _groups(codes, out, full):
            quarter = target.shape[1]
            packed = torch.zeros_like(target)
            for part in range(4):
                source = rows[:, part * quarter : (part + 1) * quarter]
                packed[:, : source.shape[1]] |= source << (2 * part)
            target.copy_(packed)


def multiply_blocks_(values: Tensor, scales: Tensor, block: int) -> None:
    """values <- values * scale of their block; the last block may be short."""
    full = values.numel() // block
    values[: full * block].view(full, block).mul_(scales[:full].unsqueeze(1))
    if full < scales.numel():
        values[full * block :].mul_(scales[full])


def tree_sum(rows: Tensor) -> Tensor:
    """Row sums in one fixed order (halving), so that they have the same bits for every vector width.

    The row length is a power of two.
    """
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0].clone()


def _groups(values: Tensor, packed: Tensor, full: int) -> list[tuple[Tensor, Tensor]]:
    quarter = GROUP // 4
    parts = []
    if full:
        parts.append((values[: full * GROUP].view(full, GROUP), packed[: full * quarter].view(full, quarter)))
    if values.numel() > full * GROUP:
        parts.append((values[full * GROUP :].view(1, -1), packed[full * quarter :].view(1, -1)))
    return parts


_E3M0_LEVELS = torch.tensor(
    [0.0, *(2.0 ** (e - 7) for e in range(1, 8)), 0.0, *(-(2.0 ** (e - 7)) for e in range(1, 8))]
)
