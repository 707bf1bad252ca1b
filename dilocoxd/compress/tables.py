"""Block codec E3M0: sign and a power of two, four bits a value.

value = scale of the block * level of the code. Byte layout of n values, blocks of B: ceil(n / B) scales, then codes.
Scale: 1 byte, `pow2` of blockint, the power of two nearest to max|x|. Code: one nibble, sign in bit 3, e in bits 0-2;
level 0 for e = 0, else 2**(e - 7). Nibbles as in blockint int4 (split halves of 4096), filler 8 (= -0). Streaming
DiLoCo (arXiv 2501.18512) sends outer gradients in this format.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dilocoxd.compress.blockint import (
    decode_scales,
    encode_scales,
    inverse_of,
    multiply_blocks_,
    nibble_parts,
    padded,
)
from dilocoxd.compress.codec import CHUNK, Codec, check_encodable, store
from dilocoxd.compress.loops import GROUP

MANTISSA_BITS = 23
HALF_UP = (1 << (MANTISSA_BITS - 1)) - 1
"""Added to the bits of a number, this takes all above one and a half powers of two to the next exponent."""
ZERO_STEP = 2 * (127 - 7)
"""Exponent of 2**-7 with one bit of mantissa."""
TOP = 64
"""The largest level in units of the smallest one, which all are whole multiples of."""


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
        maxima = torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_())
        check_encodable(maxima)
        nearest = ((maxima.view(torch.int32) + HALF_UP) >> MANTISSA_BITS << MANTISSA_BITS).view(torch.float32)
        scales, raw = encode_scales(nearest, 1, "pow2")
        store(raw, out[start // self._block : start // self._block + raw.numel()])
        relative = torch.mul(rows, inverse_of(scales).unsqueeze(1)).view(-1)[: values.numel()]
        _pack_codes(_levels_of(relative), values, self._codes(out, start, values.numel(), numel))

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        first, count = start // self._block, -(-out.numel() // self._block)
        scales = decode_scales(payload[first : first + count], "pow2")
        out.copy_(_unpack_levels(self._codes(payload, start, out.numel(), numel), out.numel()))
        multiply_blocks_(out, scales.mul_(1 / TOP), self._block)

    def _codes(self, payload: Tensor, start: int, count: int, numel: int) -> Tensor:
        first = -(-numel // self._block) + start // 2
        return payload[first : first + -(-count // 2)]


def _levels_of(relative: Tensor) -> Tensor:
    """e of float32[n], |x| < 2, as uint8[n]. Overwrites `relative`.

    Rounded up by half a place and cut off, exponent and first bit of the mantissa fill the lowest byte exactly: 240 and
    below is 2**-7 or less (level 0), 241 lies above it (level 1, not the half that its exponent says), from 242 on two
    steps are one level. The sign is beyond the byte.
    """
    bits = relative.view(torch.int32).add_(HALF_UP).bitwise_right_shift_(MANTISSA_BITS - 1)
    steps = bits.to(torch.uint8).clamp_(min=ZERO_STEP).sub_(ZERO_STEP)
    is_above = steps.clamp(max=1)
    return torch.maximum(steps.bitwise_right_shift_(1), is_above, out=steps)


def _pack_codes(levels: Tensor, values: Tensor, out: Tensor) -> None:
    """uint8[n] levels with the signs of float32[n] -> split-half nibbles. Overwrites `levels`."""
    is_negative = np.less(values.numpy(), 0)  # -0 is not; torch takes ten times as long
    levels.add_(torch.from_numpy(is_negative.view(np.uint8)), alpha=8)
    for part, target, half in nibble_parts(levels, out, levels.numel() // GROUP):
        low, high = part[:, :half], part[:, half:]
        torch.add(low[:, : high.shape[1]], high, alpha=16, out=target[:, : high.shape[1]])
        if high.shape[1] < half:
            target[:, -1] = low[:, -1] + 8 * 16  # a nibble without a value


def _unpack_levels(packed: Tensor, numel: int) -> Tensor:
    """Split-half nibbles -> int8 levels in units of the smallest one, -64 to 64."""
    codes = torch.empty(numel, dtype=torch.uint8)
    for part, source, half in nibble_parts(codes, packed, numel // GROUP):
        torch.bitwise_and(source, 15, out=part[:, :half])
        torch.bitwise_right_shift(source[:, : part.shape[1] - half], 4, out=part[:, half:])
    levels = torch.bitwise_left_shift(torch.ones_like(codes), codes & 7).bitwise_right_shift_(1).view(torch.int8)
    signs = codes.bitwise_and_(8).bitwise_right_shift_(2).view(torch.int8).neg_().add_(1)
    return levels.mul_(signs)
