"""Column codec for low-rank factors: int4 or int8 with short scales, no block across two columns.

A factor of r columns of length m comes as r * m values, column after column. Byte layout: r * ceil(m / B) scales of
format `short` of blockint (2 bytes, 4 significant bits); then the codes, column after column: int8 m bytes; int4
ceil(m / 2) bytes, byte j with value j of the column in its low and value ceil(m / 2) + j in its high nibble, as
code + 8.

Exponents of one payload lie within `spread` of its largest; weaker blocks are encoded as zero and other payloads are
refused. With that, the product of two decoded factors is exact in float64 in any order of summation (`spread_for`),
so all machines get the same bits (ALGORITHMS 8). Columns of very different size keep their precision (ALGORITHMS 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.blockint import decode_scales, encode_scales, inverse_of, load_scales
from dilocoxd.compress.codec import CHUNK, Codec, Payload, bad_payload, load, not_encodable, store
from dilocoxd.compress.loops import SCALE_BYTES

FLOAT64_BITS = 53
MANTISSA_BITS = 7
"""Of bf16; what lies above them in a positive number is the exponent."""
SCALE_BITS = 4
"""Significant bits of a short scale."""
UNUSED_BITS = (1 << MANTISSA_BITS - SCALE_BITS + 1) - 1
"""Of the mantissa of bf16: zero in a short scale."""
LEAST, LARGEST = 63 << MANTISSA_BITS, 191 << MANTISSA_BITS
"""2**-64 and 2**64 in bf16."""


def spread_for(bits: int, lowrank_r: int) -> int:
    """Largest range of exponents per factor that keeps the product of two factors exact in float64."""
    return (FLOAT64_BITS - 2 * (bits - 1 + SCALE_BITS) - lowrank_r.bit_length()) // 2


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
        first = 0
        for codec, count in self._parts:
            codec.checked_payload(source[first : first + codec.payload_bytes(count)], count)
            first += codec.payload_bytes(count)
        return source

    def finish_payload(self, out: Tensor, numel: int) -> None:
        if not self._parts:
            out.zero_()
        first = 0
        for codec, count in self._parts:
            codec.finish_payload(out[first : first + codec.payload_bytes(count)], count)
            first += codec.payload_bytes(count)

    def _part_at(self, start: int, payload: Tensor) -> tuple[Codec, int, int, Tensor]:
        origin = first = 0
        for codec, count in self._parts:
            size = codec.payload_bytes(count)
            if start < origin + count:
                return codec, count, origin, payload[first : first + size]
            origin, first = origin + count, first + size
        raise ValueError(f"no part holds value {start}")
