"""Block-uniform integers: int8 and int4 with one scale per block of consecutive values.

value = code * scale, |code| <= levels (127 or 7). Rounding to nearest even: |error| <= scale / 2. Stochastic rounding:
|error| < scale, no bias, for use without error feedback (QSGD, arXiv 1610.02132); its dice are a hash of the position
and of the block's scale, so that the same values give the same payload everywhere.

Byte layout of n values, blocks of B:
1. ceil(n / B) scales in block order:
   `fp32`  4 bytes  max|x| / levels, rounded to nearest;
   `bf16`  2 bytes  the upper half of that fp32 value, rounded to nearest even;
   `pow2`  1 byte   int8 exponent a: the scale is 2**a, the smallest power of two >= max|x| / levels; -127: zero block;
   `short` 2 bytes  bf16 with only the upper three mantissa bits in use, rounded up (for exact products, columns.py).
   A scale is 0 (the whole block decodes to 0) or lies in [2**-64, 2**64]; anything else is an error. Smaller maxima are
   encoded as a zero block, so that no subnormal number ever enters the arithmetic.
2. codes. int8: n bytes, two's complement. int4: groups of 4096 values (the last one shorter, t values); a group of t
   takes ceil(t / 2) bytes, byte j holds value j in its low and value ceil(t / 2) + j in its high nibble, each as
   code + 8 (split halves: both halves are contiguous, which vectorizes). A nibble without a value is 8.
   Codes -128 and -8 are never produced; they decode like every other code.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.codec import (
    Codec,
    Payload,
    bad_payload,
    check_encodable,
    folded,
    load,
    not_encodable,
    store,
)
from dilocoxd.compress.loops import GROUP, SCALE_BYTES, ScaleFormat

SHORT_MASK = 0xFFFFF
"""Bits of an fp32 number that a `short` scale leaves zero: three bits of the mantissa remain."""
SCALE_MIN = 2.0**-64
SCALE_MAX = 2.0**64
EXACT_SUM_MAX = 1 << 24
"""Integers up to here, and their sums in any order, are exact in fp32."""
BELOW_SCALE_MIN = 2.0**-64 * (1 - 2.0**-24)
"""The fp32 number before SCALE_MIN."""
ROUNDER = 1.5 * 2.0**23 + 8
"""The last place of fp32 numbers of this size is 1: adding it rounds to nearest even and leaves code + 8 in the bits.

Cheaper than rounding and converting; the lowest byte of the rest of the number is 0."""


class BlockInt(Codec):
    """`bits` of 4 or 8, `block` a power of two from 16 to 4096."""

    def __init__(self, bits: Literal[4, 8], block: int, scale: ScaleFormat, *, is_stochastic: bool = False) -> None:
        self.name = f"int{bits}"
        self._is_stochastic = is_stochastic
        self._bits: Literal[4, 8] = bits
        self._levels = 2 ** (bits - 1) - 1
        self._block = block
        self._scale: ScaleFormat = scale

    def payload_bytes(self, numel: int) -> int:
        return self._scale_bytes(numel) + (numel * self._bits + 7) // 8

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        stored, target = self._parts(out, start, numel, values.numel())
        compiled = loops.found_for(values)
        if compiled and self._bits == 4 and not self._is_stochastic:
            if not compiled.encode(values, 4, self._block, self._scale, stored, target):
                raise not_encodable()
            return
        rows = padded(values, self._block).view(-1, self._block)
        maxima = torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_())
        scales, raw = encode_scales(maxima, self._levels, self._scale)
        store(raw, stored)
        work = torch.mul(rows, inverse_of(scales).unsqueeze(1))
        if self._is_stochastic:
            work.add_(dice(scales, start, self._block)).clamp_(-self._levels, self._levels)
        codes = work.view(-1)[: values.numel()]
        if self._bits == 8:
            target.view(torch.int8).copy_(codes.round_())
        else:
            pack_nibbles(codes, target)

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        parts = self._parts(payload, start, numel, out.numel())
        if loops.found:
            loops.found.decode(parts, self._bits, self._block, self._scale, out, None)
            return
        scales, source = load_scales(parts[0], self._scale), parts[1]
        if self._bits == 8:
            codes = out.copy_(source.view(torch.int8))
        else:
            codes = out.copy_(unpack_nibbles(source, out.numel()))
        full, end = out.numel() // self._block, out.numel() // self._block * self._block
        rows, target = codes[:end].view(full, self._block), out[:end].view(full, self._block)
        torch.mul(rows, scales[:full].unsqueeze(1), out=target)
        if end < out.numel():
            torch.mul(codes[end:], scales[full], out=out[end:])

    def add_chunk_(self, payload: Tensor, start: int, numel: int, target: Tensor, factor: float) -> None:
        if loops.found:
            parts = self._parts(payload, start, numel, target.numel())
            loops.found.decode(parts, self._bits, self._block, self._scale, target, factor)
        else:
            super().add_chunk_(payload, start, numel, target, factor)

    def square_sum_chunk(self, payload: Tensor, start: int, numel: int, count: int) -> float:
        """Sums of squared codes are exact integers, whatever their order; each is multiplied by its scale squared."""
        if (self._levels + 1) ** 2 * self._block > EXACT_SUM_MAX:
            return super().square_sum_chunk(payload, start, numel, count)
        stored, source = self._parts(payload, start, numel, count)
        scales = load_scales(stored, self._scale).double()
        if loops.found:
            exact = loops.found.square_sums(source, self._bits, self._block, count)
            return folded(scales.mul_(scales).mul_(exact))
        codes = source.view(torch.int8) if self._bits == 8 else unpack_nibbles(source, count)
        rows = padded(codes.to(torch.float32), self._block).view(-1, self._block)
        sums = torch.mul(rows, rows).sum(dim=1).double()
        return folded(scales.mul_(scales).mul_(sums))

    def checked_payload(self, payload: Payload, numel: int) -> Tensor:
        source = super().checked_payload(payload, numel)
        decode_scales(source[: self._scale_bytes(numel)], self._scale)
        return source

    def _parts(self, payload: Tensor, start: int, numel: int, count: int) -> tuple[Tensor, Tensor]:
        """Scales and codes of `count` values from `start` on."""
        size, first = SCALE_BYTES[self._scale], start // self._block
        codes = self._scale_bytes(numel) + start * self._bits // 8
        return (
            payload[first * size : (first - (-count // self._block)) * size],
            payload[codes : codes + (count * self._bits + 7) // 8],
        )

    def _scale_bytes(self, numel: int) -> int:
        return -(-numel // self._block) * SCALE_BYTES[self._scale]


def dice(scales: Tensor, start: int, block: int) -> Tensor:
    """[blocks, block] numbers in [-0.5, 0.5): a hash of position and scale in exact integer arithmetic."""
    positions = torch.arange(start, start + scales.numel() * block, dtype=torch.int64).view(-1, block)
    mixed = positions + scales.view(torch.int32).to(torch.int64).unsqueeze(1) * 40503
    for _ in range(3):
        mixed = (mixed * 1103515245 + 12345) & 0x7FFFFFFF
        mixed = mixed ^ (mixed >> 15)
    return (mixed & 0xFFFF).to(torch.float32).sub_(32768.0).mul_(2.0**-16)


def padded(values: Tensor, multiple: int) -> Tensor:
    """`values`, lengthened with zeros to a multiple of `multiple` if needed."""
    excess = values.numel() % multiple
    return torch.nn.functional.pad(values, (0, multiple - excess)) if excess else values


def encode_scales(maxima: Tensor, levels: int, scale_format: ScaleFormat) -> tuple[Tensor, Tensor]:
    """Scales as the decoder will see them (fp32) and their wire form, for block maxima max|x|.

    Raises NotEncodableError if a maximum is NaN, Inf or out of range.
    """
    check_encodable(maxima)
    # By a tensor: by a number a GPU multiplies with its reciprocal, which is rounded.
    scales = torch.nn.functional.threshold(maxima / maxima.new_tensor(float(levels)), BELOW_SCALE_MIN, 0.0)
    if scale_format == "fp32":
        return scales, scales
    bits = scales.view(torch.int32)
    if scale_format == "pow2":
        exponents = (bits + 0x7FFFFF) >> 23
        return (exponents << 23).view(torch.float32), exponents.sub(127).to(torch.int8)
    if scale_format == "short":
        scales = ((bits + SHORT_MASK) & ~SHORT_MASK).view(torch.float32)
    raw = scales.to(torch.bfloat16)
    return raw.to(torch.float32), raw


def inverse_of(scales: Tensor) -> Tensor:
    """1 / scale, and 0 for the scale 0 of a zero block."""
    return torch.nan_to_num(scales.reciprocal(), posinf=0.0)


def load_scales(raw: Tensor, scale_format: ScaleFormat) -> Tensor:
    """fp32 scales from a wire form that `decode_scales` has checked."""
    if scale_format == "pow2":
        return load(raw, torch.int8).to(torch.int32).add_(127).bitwise_left_shift_(23).view(torch.float32)
    return load(raw, torch.float32 if scale_format == "fp32" else torch.bfloat16).to(torch.float32)


def decode_scales(raw: Tensor, scale_format: ScaleFormat) -> Tensor:
    """fp32 scales from their wire form. Raises WireError unless each is 0 or in [2**-64, 2**64]."""
    scales = load_scales(raw, scale_format)
    if scale_format != "short" and scales.numel():
        least, largest = scales.aminmax()
        if float(least) >= SCALE_MIN and float(largest) <= SCALE_MAX:
            return scales  # as nearly always
    is_valid = (scales == 0) | ((scales >= SCALE_MIN) & (scales <= SCALE_MAX))
    if scale_format == "short":
        is_valid &= (scales.view(torch.int32) & SHORT_MASK) == 0
    if not bool(is_valid.all().item()):
        raise bad_payload("a block scale is NaN, Inf, negative, outside [2**-64, 2**64] or too precise")
    return scales


def multiply_blocks_(values: Tensor, scales: Tensor, block: int) -> None:
    """values <- values * scale of their block; the last block may be short."""
    full = values.numel() // block
    if full == scales.numel():
        values.view(full, block).mul_(scales.unsqueeze(1))
        return
    values[: full * block].view(full, block).mul_(scales[:full].unsqueeze(1))
    if full < scales.numel():
        values[full * block :].mul_(scales[full])


def pack_nibbles(values: Tensor, out: Tensor) -> None:
    """float32 values in [-8, 7] -> split-half nibbles of the nearest integers, ties to even. Overwrites `values`."""
    full = values.numel() // GROUP
    for part, target, half in nibble_parts(values.add_(ROUNDER), out, full):
        bits = part.view(torch.int32)
        low, high = bits[:, :half], bits[:, half:]
        low[:, : high.shape[1]].add_(high, alpha=16)
        if high.shape[1] < half:
            low[:, -1].add_(8 * 16)  # a nibble without a value
        target.copy_(low)  # keeps the lowest byte


def unpack_nibbles(packed: Tensor, numel: int) -> Tensor:
    """Split-half nibbles -> int8 codes in [-8, 7]."""
    codes = torch.empty(numel, dtype=torch.int8)
    for part, source, half in nibble_parts(codes.view(torch.uint8), packed, numel // GROUP):
        torch.bitwise_and(source, 15, out=part[:, :half])
        torch.bitwise_right_shift(source[:, : part.shape[1] - half], 4, out=part[:, half:])
    return codes.sub_(8)


def nibble_parts(values: Tensor, packed: Tensor, full: int) -> list[tuple[Tensor, Tensor, int]]:
    """(values as rows, their bytes as rows, values in the low half) of the full groups and of the rest."""
    half = GROUP // 2
    parts = []
    if full:
        parts.append((values[: full * GROUP].view(full, GROUP), packed[: full * half].view(full, half), half))
    if values.numel() > full * GROUP:
        rest, rest_bytes = values[full * GROUP :], packed[full * half :]
        parts.append((rest.view(1, -1), rest_bytes.view(1, -1), rest_bytes.numel()))
    return parts
