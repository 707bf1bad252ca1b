"""Block codec E3M0: sign and a power of two, four bits a value.

value = scale of the block * level of the code. Byte layout of n values, blocks of B: ceil(n / B) scales, then codes.
Scale: 1 byte, `pow2` of blockint, the power of two nearest to max|x|. Code: one nibble, sign in bit 3, e in bits 0-2;
level 0 for e = 0, else 2**(e - 7). Nibbles as in blockint int4 (split halves of 4096), filler 8 (= -0). Streaming
DiLoCo (arXiv 2501.18512) sends outer gradients in this format.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dilocoxd.compress.blockint import (
    decode_scales,
    encode_scales,
    inverse_of,
    multiply_blocks_,
    pack_nibbles,
    padded,
    unpack_nibbles,
)
from dilocoxd.compress.codec import CHUNK, Codec, check_encodable, store

MANTISSA_BITS = 23
EXPONENT_BIAS = 127


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


_E3M0_LEVELS = torch.tensor(
    [0.0, *(2.0 ** (e - 7) for e in range(1, 8)), 0.0, *(-(2.0 ** (e - 7)) for e in range(1, 8))]
)
