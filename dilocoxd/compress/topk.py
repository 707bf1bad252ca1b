"""Top-k per chunk: of every 4,096 values the k largest in magnitude, as 12-bit positions and 2-bit or fp32 values.

Byte layout of n values in C = ceil(n / 4096) chunks (the last one filled up with zeros), chunk after chunk:
1. positions: k numbers of 12 bits, strictly ascending; two numbers a, b take three bytes a & 255,
   a >> 8 | (b & 15) << 4, b >> 4. k is even.
2. `fp32` values: k numbers. `2bit` values: two bf16 magnitudes (low, high), then ceil(k / 4) bytes, four values a
   byte from low to high bits: bit 0 sign (1 = negative), bit 1 magnitude (1 = high).
The magnitudes are the means of the values below and from the mean magnitude up, a two-level Lloyd step. What is not
sent stays in the error feedback; without it top-k does not train (ALGORITHMS 4.5). SparseLoCo, arXiv 2508.15706.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dilocoxd.compress.blockint import padded
from dilocoxd.compress.codec import CHUNK, Codec, bad_payload, check_decoded, check_encodable, load, store

SPAN = 4096
ValueFormat = Literal["2bit", "fp32"]


class TopK(Codec):
    """`k` of every 4,096 values; even, 2..4096."""

    name = "topk"
    chunk = CHUNK // 2

    def __init__(self, k: int, values: ValueFormat) -> None:
        self._k = k
        self._values: ValueFormat = values
        self._position_bytes = k // 2 * 3
        value_bytes = 4 * k if values == "fp32" else 4 + -(-k // 4)
        self._span_bytes = self._position_bytes + value_bytes

    def payload_bytes(self, numel: int) -> int:
        return -(-numel // SPAN) * self._span_bytes

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        rows = padded(values, SPAN).view(-1, SPAN)
        magnitudes = rows.abs()
        check_encodable(magnitudes)
        positions = magnitudes.topk(self._k, dim=1, sorted=False).indices.sort(dim=1).values
        chosen = rows.gather(1, positions)
        target = self._spans(out, start, rows.shape[0])
        target[:, : self._position_bytes].copy_(_pack_positions(positions))
        if self._values == "fp32":
            target[:, self._position_bytes :].copy_(chosen.view(torch.uint8).view(rows.shape[0], -1))
        else:
            self._encode_signs(chosen, target[:, self._position_bytes :])

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        num_spans = -(-out.numel() // SPAN)
        source = self._spans(payload, start, num_spans)
        positions = _unpack_positions(source[:, : self._position_bytes])
        if not bool((positions[:, 1:] > positions[:, :-1]).all().item()):
            raise bad_payload("positions of a chunk are not strictly ascending")
        raw = source[:, self._position_bytes :]
        if self._values == "fp32":
            values = load(raw.reshape(-1), torch.float32).view(num_spans, self._k)
            check_decoded(values)
        else:
            values = self._decode_signs(raw)
        rows = torch.zeros(num_spans, SPAN).scatter_(1, positions, values)
        out.copy_(rows.view(-1)[: out.numel()])

    def _spans(self, payload: Tensor, start: int, count: int) -> Tensor:
        first = start // SPAN * self._span_bytes
        return payload[first : first + count * self._span_bytes].view(count, self._span_bytes)

    def _encode_signs(self, chosen: Tensor, out: Tensor) -> None:
        magnitudes = chosen.abs().double()
        is_high = magnitudes >= magnitudes.mean(dim=1, keepdim=True)
        means = []
        for group in (~is_high, is_high):
            count = group.sum(dim=1).clamp_(min=1)
            means.append((magnitudes * group).sum(dim=1) / count)
        store_rows(torch.stack(means, dim=1).float().to(torch.bfloat16), out[:, :4])
        codes = (chosen < 0).to(torch.uint8) | (is_high.to(torch.uint8) << 1)
        codes = torch.nn.functional.pad(codes, (0, -self._k % 4)).view(out.shape[0], -1, 4)
        out[:, 4:].copy_(codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6)

    def _decode_signs(self, raw: Tensor) -> Tensor:
        levels = load(raw[:, :4].reshape(-1), torch.bfloat16).float().view(-1, 2)
        check_decoded(levels)
        if bool((levels < 0).any().item()):
            raise bad_payload("a magnitude of a chunk is negative")
        packed = raw[:, 4:]
        codes = torch.stack([(packed >> (2 * part)) & 3 for part in range(4)], dim=2).view(raw.shape[0], -1)
        codes = codes[:, : self._k].to(torch.int64)
        magnitudes = levels.gather(1, codes >> 1)
        return torch.where((codes & 1) == 1, -magnitudes, magnitudes)


def store_rows(values: Tensor, out: Tensor) -> None:
    """Copy the bytes of each row of `values` into the rows of `out`."""
    raw = torch.empty(values.numel() * values.itemsize, dtype=torch.uint8)
    store(values, raw)
    out.copy_(raw.view(values.shape[0], -1))


def _pack_positions(positions: Tensor) -> Tensor:
    pairs = positions.to(torch.int32).view(positions.shape[0], -1, 2)
    a, b = pairs[:, :, 0], pairs[:, :, 1]
    triples = torch.stack([a & 255, (a >> 8) | ((b & 15) << 4), b >> 4], dim=2)
    return triples.to(torch.uint8).view(positions.shape[0], -1)


def _unpack_positions(packed: Tensor) -> Tensor:
    triples = packed.reshape(packed.shape[0], -1, 3).to(torch.int64)
    a = triples[:, :, 0] | (triples[:, :, 1] & 15) << 8
    b = triples[:, :, 1] >> 4 | triples[:, :, 2] << 4
    return torch.stack([a, b], dim=2).view(packed.shape[0], -1)
