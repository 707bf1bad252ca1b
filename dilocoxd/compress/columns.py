"""Column codec for low-rank factors, and their exact product: int4 or int8 with short scales, no block across columns.

A factor of r columns of length m comes as r * m values, column after column. Byte layout: r * ceil(m / B) scales of
format `short` of blockint (2 bytes, 4 significant bits); then the codes, column after column: int8 m bytes; int4
ceil(m / 2) bytes, byte j with value j of the column in its low and value ceil(m / 2) + j in its high nibble, as
code + 8.

Exponents of one payload lie within `spread` of its largest; weaker blocks are encoded as zero and other payloads are
refused. With that, the product of two decoded factors is exact in float64 in any order of summation (`spread_for`),
so all machines get the same bits (ALGORITHMS 8). Of int4 it is nearly always exact in fp32 as well, in half the time:
the scales say where (`exact_in_single`). Columns of very different size keep their precision (ALGORITHMS 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.blockint import decode_scales, encode_scales, inverse_of, load_scales
from dilocoxd.compress.codec import CHUNK, MAGNITUDE_MAX, Codec, Payload, bad_payload, load, not_encodable, store
from dilocoxd.compress.loops import SCALE_BYTES

FLOAT64_BITS = 53
FLOAT32_BITS = 24
FLOAT32_EXPONENT_MIN = -126
"""Of the smallest number that no processor flushes to zero."""
MANTISSA_BITS = 7
"""Of bf16; what lies above them in a positive number is the exponent."""
SCALE_BITS = 4
"""Significant bits of a short scale."""
UNUSED_BITS = (1 << MANTISSA_BITS - SCALE_BITS + 1) - 1
"""Of the mantissa of bf16: zero in a short scale."""
LEAST, LARGEST = 63 << MANTISSA_BITS, 191 << MANTISSA_BITS
"""2**-64 and 2**64 in bf16."""
BIAS = 127
"""Of the exponent of bf16."""
MAGNITUDE_MAX_BITS = int(math.log2(MAGNITUDE_MAX))
"""Of `codec.MAGNITUDE_MAX`."""
ROWS_PER_PRODUCT = 64
"""Rows of a float64 product at a time: bounds the extra memory."""
OUT_OF_THE_WAY = 1 << 12
"""Above every exponent, and twice it is still a number of 16 bits."""


def spread_for(bits: int, lowrank_r: int) -> int:
    """Largest range of exponents per factor that keeps the product of two factors exact in float64."""
    return (FLOAT64_BITS - 2 * (bits - 1 + SCALE_BITS) - lowrank_r.bit_length()) // 2


def exact_in_single(p_scales_RB: Tensor, r_scales_RC: Tensor, bits: int) -> Tensor:
    """bool[B, C]: which blocks of rows and columns of P R^T are exact in fp32 too, in any order of summation.

    Of a pair of blocks every product is a multiple of the least product of two scales' last bits, and no sum of some of
    them exceeds the sum of the largest products. If 24 bits reach from one to the other, nothing is ever rounded. None
    is where a sum could pass `MAGNITUDE_MAX` or fall below the normal numbers. Takes bits of bf16, int16[R, blocks].
    """
    p_wide, r_wide = p_scales_RB.view(torch.bfloat16).double(), r_scales_RC.view(torch.bfloat16).double()
    largest = torch.mm(p_wide.t(), r_wide).mul_(4.0 ** (bits - 1))
    above = torch.frexp(largest).exponent  # 2**above is larger
    least = torch.add(_last_bits(p_scales_RB).unsqueeze(2), _last_bits(r_scales_RC).unsqueeze(1)).amin(dim=0)
    is_within = (above <= least + FLOAT32_BITS) & (above <= MAGNITUDE_MAX_BITS)
    return is_within & (least >= FLOAT32_EXPONENT_MIN)


def _last_bits(scales: Tensor) -> Tensor:
    """Exponents of the last bits of short scales; a scale of zero makes no product, so its own is out of the way."""
    exponents = (scales >> MANTISSA_BITS) - (BIAS + SCALE_BITS - 1)
    return torch.where(scales.view(torch.bfloat16) == 0, OUT_OF_THE_WAY, exponents).to(torch.int16)


@dataclass(frozen=True, slots=True)
class Single:
    """Where a product is exact in fp32 too: bool[row blocks, column blocks], and the numbers in a block."""

    where: Tensor
    block: int


def exact_product(p_RM: Tensor, r_RN: Tensor, out_MN: Tensor, single: Single | None = None) -> None:
    """out <- P R^T rounded once to fp32. Decoded factors make every float64 sum exact, whatever its order.

    Blocks of which `single` says so are multiplied in fp32: nothing is rounded there either, so the bits are the same.
    """
    # Of one column libraries make a product without a sum, whose zeros have signs.
    others = (~single.where).sum(dim=1).tolist() if single and len(p_RM) > 1 and is_single_whole() else []
    if single is None or not others or 2 * sum(others) > single.where.numel():
        _wide_product(p_RM, r_RN, out_MN)
        return
    torch.mm(p_RM.t(), r_RN, out=out_MN)
    for number, count in enumerate(others):
        if count:
            found = (~single.where[number]).nonzero()
            rows = slice(number * single.block, (number + 1) * single.block)
            columns = slice(int(found[0]) * single.block, (int(found[-1]) + 1) * single.block)
            _wide_product(p_RM[:, rows], r_RN[:, columns], out_MN[rows, columns])


@cache
def is_single_whole() -> bool:
    """Whether fp32 products keep all bits here: a library can be told to round what it multiplies to fewer."""
    p_RM, r_RN = torch.arange(64 * 96).view(64, 96) * 37 % 4096, torch.arange(64 * 160).view(64, 160) * 11 % 64
    return torch.equal(torch.mm(p_RM.float().t(), r_RN.float()).double(), torch.mm(p_RM.double().t(), r_RN.double()))


def _wide_product(p_RM: Tensor, r_RN: Tensor, out_MN: Tensor) -> None:
    p_wide, r_wide = p_RM.t().double().contiguous(), r_RN.double()
    is_bounded = float(p_RM.abs().amax()) * float(r_RN.abs().amax()) * p_RM.shape[0] <= MAGNITUDE_MAX
    room = torch.empty(min(ROWS_PER_PRODUCT, out_MN.shape[0]), out_MN.shape[1], dtype=torch.float64)
    for row in range(0, out_MN.shape[0], ROWS_PER_PRODUCT):
        out = out_MN[row : row + ROWS_PER_PRODUCT]
        block = room[: out.shape[0]]
        torch.mm(p_wide[row : row + ROWS_PER_PRODUCT], r_wide, out=block)
        if not is_bounded:
            block.clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
        if loops.found and out.is_contiguous():
            loops.found.narrow(block, out)
        else:
            out.copy_(block)


class ColumnInt(Codec):
    """`length` = values per column."""

    def __init__(self, bits: Literal[4, 8], block: int, length: int, spread: int) -> None:
        self.name = f"columns{bits}"
        self._bits: Literal[4, 8] = bits
        self._levels = 2 ** (bits - 1) - 1
        self._block = block
        self._length = length
        self._spread = spread
        self._blocks_per_column = -(-length // block)
        self._scale_bytes = self._blocks_per_column * SCALE_BYTES["short"]
        self._bytes_per_column = length if bits == 8 else -(-length // 2)

    def payload_bytes(self, numel: int) -> int:
        columns, rest = divmod(numel, self._length)
        if rest:
            raise ValueError(f"{numel} values are not whole columns of {self._length}")
        return columns * (self._scale_bytes + self._bytes_per_column)

    def chunks(self, numel: int) -> Iterator[tuple[int, int]]:
        step = max(1, CHUNK // self._length) * self._length
        for start in range(0, numel, step):
            yield start, min(start + step, numel)

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        columns = values.view(-1, self._length)
        stored, target = self._parts(out, start, numel, columns.shape[0])
        if loops.found:
            if not loops.found.encode_columns(columns, self._bits, self._block, stored, target.view(-1)):
                raise not_encodable()
            return
        width = self._blocks_per_column * self._block
        blocks = torch.nn.functional.pad(columns, (0, width - self._length)).view(-1, self._block)
        scales, raw = encode_scales(blocks.abs().amax(dim=1), self._levels, "short")
        store(raw, stored)
        codes = blocks.mul(inverse_of(scales).unsqueeze(1)).round_().view(-1, width)[:, : self._length]
        if self._bits == 8:
            target.view(torch.int8).copy_(codes)
        else:
            half = self._bytes_per_column
            low, high = codes[:, :half], codes[:, half:]
            low[:, : self._length - half].add_(high, alpha=16)
            target.copy_(low.to(torch.int32)).add_(136)

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        columns = out.view(-1, self._length)
        stored, source = self._parts(payload, start, numel, columns.shape[0])
        if loops.found:
            loops.found.decode_columns((stored, source.view(-1)), self._bits, self._block, columns)
            return
        scales = load_scales(stored, "short").view(columns.shape[0], -1)
        if self._bits == 8:
            columns.copy_(source.view(torch.int8))
        else:
            half = self._bytes_per_column
            columns[:, :half].copy_((source & 15).view(torch.int8).sub_(8))
            columns[:, half:].copy_((source >> 4).view(torch.int8).sub_(8)[:, : self._length - half])
        columns.mul_(scales.repeat_interleave(self._block, dim=1)[:, : self._length])

    def finish_payload(self, out: Tensor, numel: int) -> None:
        raw = out[: numel // self._length * self._scale_bytes]
        scales = load(raw, torch.int16)
        if self._is_within_spread(scales):
            return  # as nearly always
        exponents = scales >> MANTISSA_BITS
        store(torch.where(exponents < exponents.amax() - self._spread, 0, scales).to(torch.int16), raw)

    def scales_of(self, payload: Tensor, numel: int) -> Tensor:
        """int16[columns, blocks], bits of bf16, of a payload that `checked_payload` passed."""
        raw = payload[: numel // self._length * self._scale_bytes]
        return load(raw, torch.int16).view(-1, self._blocks_per_column)

    def _is_within_spread(self, scales: Tensor) -> bool:
        """Whether all of int16[blocks], bits of bf16, but zeros are in range and near each other; False: look."""
        largest = scales.amax()
        least = int(torch.where(scales == 0, largest, scales).amin())
        is_valid = least >= LEAST and int(largest) <= LARGEST
        return is_valid and (int(largest) >> MANTISSA_BITS) - (least >> MANTISSA_BITS) <= self._spread

    def _parts(self, payload: Tensor, start: int, numel: int, count: int) -> tuple[Tensor, Tensor]:
        """Scales, and codes [count, bytes], of `count` columns from the one on that begins at `start`."""
        first, last = start // self._length, start // self._length + count
        origin, size = numel // self._length * self._scale_bytes, self._bytes_per_column
        return (
            payload[first * self._scale_bytes : last * self._scale_bytes],
            payload[origin + first * size : origin + last * size].view(count, size),
        )

    def checked_payload(self, payload: Payload, numel: int) -> Tensor:
        source = super().checked_payload(payload, numel)
        raw = source[: numel // self._length * self._scale_bytes]
        scales = load(raw, torch.int16)
        if self._is_within_spread(scales) and not bool((scales & UNUSED_BITS).any()):
            return source  # as nearly always
        decode_scales(raw, "short")
        exponents = scales >> MANTISSA_BITS
        used = exponents[exponents != 0]
        if used.numel() and int(used.amax() - used.amin()) > self._spread:
            raise bad_payload(f"scale exponents differ by more than {self._spread}: the product would not be exact")
        return source


class PartsCodec(Codec):
    """Several vectors one after the other, each with a codec of its own; payloads one after the other.

    Without any part the payload is one zero byte: every segment has something to send and to hash in every pass.
    """

    name = "parts"

    def __init__(self, parts: Sequence[tuple[Codec, int]]) -> None:
        self._parts = [(codec, numel) for codec, numel in parts if numel]

    def payload_bytes(self, numel: int) -> int:
        if numel != sum(count for _, count in self._parts):
            raise ValueError(f"{numel} values, the parts have {sum(count for _, count in self._parts)}")
        return sum(codec.payload_bytes(count) for codec, count in self._parts) or 1

    def chunks(self, numel: int) -> Iterator[tuple[int, int]]:
        origin = 0
        for codec, count in self._parts:
            for start, stop in codec.chunks(count):
                yield origin + start, origin + stop
            origin += count

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        codec, count, origin, raw = self._part_at(start, out)
        codec.encode_chunk(values, start - origin, count, raw)

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        codec, count, origin, raw = self._part_at(start, payload)
        codec.decode_chunk(raw, start - origin, count, out)

    def square_sum_chunk(self, payload: Tensor, start: int, numel: int, count: int) -> float:
        codec, length, origin, raw = self._part_at(start, payload)
        return codec.square_sum_chunk(raw, start - origin, length, count)

    def checked_payload(self, payload: Payload, numel: int) -> Tensor:
        source = super().checked_payload(payload, numel)
        if not self._parts and int(source[0]):
            raise bad_payload("the filler of an empty payload must be a zero byte")
        for codec, count, raw in self.parts_of(source):
            codec.checked_payload(raw, count)
        return source

    def finish_payload(self, out: Tensor, numel: int) -> None:
        if not self._parts:
            out.zero_()
        for codec, count, raw in self.parts_of(out):
            codec.finish_payload(raw, count)

    def parts_of(self, payload: Tensor) -> Iterator[tuple[Codec, int, Tensor]]:
        """Codec, number of values and bytes of each part of a whole payload."""
        first = 0
        for codec, count in self._parts:
            size = codec.payload_bytes(count)
            yield codec, count, payload[first : first + size]
            first += size

    def _part_at(self, start: int, payload: Tensor) -> tuple[Codec, int, int, Tensor]:
        origin = 0
        for codec, count, raw in self.parts_of(payload):
            if start < origin + count:
                return codec, count, origin, raw
            origin += count
        raise ValueError(f"no part holds value {start}")
