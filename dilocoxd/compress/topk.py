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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.blockint import padded
from dilocoxd.compress.codec import CHUNK, Codec, bad_payload, check_decoded, check_encodable, not_encodable

SPAN = 4096
SPAN_BITS = 12
STRIPE = 16
"""Spans compared at a time: fewer bools than the codec's scratch would otherwise grow by."""
CANDIDATES_MAX = 4
"""Times k and spans; of Gaussian values 1.2 are usual, and with many more the short way is none."""
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
        positions = largest_positions_of(rows, self._k)
        chosen = rows.gather(1, positions)
        target = self._spans(out, start, rows.shape[0]).numpy()
        _pack_positions(positions.numpy(), target[:, : self._position_bytes])
        if self._values == "fp32":
            target[:, self._position_bytes :] = chosen.numpy().view(np.uint8)
        else:
            _encode_signs(chosen, target[:, self._position_bytes :])

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        num_spans = -(-out.numel() // SPAN)
        source = self._spans(payload, start, num_spans).numpy()
        positions = _unpack_positions(source[:, : self._position_bytes])
        if not (positions[:, 1:] > positions[:, :-1]).all():
            raise bad_payload("positions of a chunk are not strictly ascending")
        raw = source[:, self._position_bytes :]
        if self._values == "fp32":
            values = torch.from_numpy(raw.copy().view(np.float32))
            check_decoded(values)
        else:
            values = _decode_signs(raw, self._k)
        at = torch.from_numpy(positions)
        if out.numel() == num_spans * SPAN:
            out.zero_().view(num_spans, SPAN).scatter_(1, at, values)
        else:
            out.copy_(torch.zeros(num_spans, SPAN).scatter_(1, at, values).view(-1)[: out.numel()])

    def _spans(self, payload: Tensor, start: int, count: int) -> Tensor:
        first = start // SPAN * self._span_bytes
        return payload[first : first + count * self._span_bytes].view(count, self._span_bytes)


def largest_positions_of(rows: Tensor, k: int) -> Tensor:
    """`largest_positions` of the magnitudes of float32[rows, SPAN]. Raises NotEncodableError."""
    groups = 4 << (k - 1).bit_length()
    if loops.found is None or groups > SPAN // 2:
        return largest_positions(rows.abs(), k)
    found = loops.found.largest_places(rows, k, groups)
    if found is None:
        raise not_encodable()
    positions, is_clear = found
    if not bool(is_clear.all()):
        unclear = ~is_clear
        positions[unclear] = _plain_positions(rows[unclear].abs(), k)
    return positions


def largest_positions(magnitudes: Tensor, k: int) -> Tensor:
    """int64[rows, k], ascending: where the k largest of float32[rows, SPAN] >= 0 stand, those that `topk` chooses.

    The k-th largest of the maxima of groups is a lower bound of the k-th largest value; few values reach it, and only
    they are compared. Rows in which equal magnitudes leave a choice, or with fewer than k groups that are not zero,
    are left to `topk`. Raises NotEncodableError.
    """
    num_rows = magnitudes.shape[0]
    groups = 4 << (k - 1).bit_length()
    if groups > SPAN // 2:
        check_encodable(magnitudes)
        return _plain_positions(magnitudes, k)
    peaks = magnitudes.view(num_rows, -1, groups).amax(dim=1)
    check_encodable(peaks)
    values = magnitudes.numpy()
    bound = np.sort(peaks.numpy(), axis=1)[:, groups - k]
    bound[bound == 0] = np.inf
    stripes = range(0, num_rows, STRIPE)
    flat = np.concatenate(
        [_places(values[at : at + STRIPE] >= bound[at : at + STRIPE, None]) + at * SPAN for at in stripes]
    )
    if flat.size > CANDIDATES_MAX * k * num_rows:
        return _plain_positions(magnitudes, k)
    candidates, row = values.reshape(-1)[flat], flat >> SPAN_BITS
    counts = np.bincount(row, minlength=num_rows)
    width = max(k, int(counts.max()))
    table = np.full((num_rows, width), -1.0, dtype=np.float32)
    table[np.arange(width) < counts[:, None]] = candidates
    least = np.sort(table, axis=1)[:, width - k]
    is_kept = candidates >= np.repeat(least, counts)
    kept = flat[is_kept]
    is_clear = np.bincount(kept >> SPAN_BITS, minlength=num_rows) == k
    if is_clear.all():
        return torch.from_numpy((kept & (SPAN - 1)).reshape(num_rows, k))
    positions = torch.empty(num_rows, k, dtype=torch.int64)
    clear = torch.from_numpy(is_clear)
    positions[clear] = torch.from_numpy((kept[is_clear[kept >> SPAN_BITS]] & (SPAN - 1)).reshape(-1, k))
    positions[~clear] = _plain_positions(magnitudes[~clear], k)
    return positions


def _plain_positions(magnitudes: Tensor, k: int) -> Tensor:
    return magnitudes.topk(k, dim=1, sorted=False).indices.sort(dim=1).values


def _places(is_set: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Flat positions of the few that are set, ascending; the number of values is a multiple of 8."""
    eights = is_set.reshape(-1).view(np.uint64)
    words = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[words].view(np.bool_))
    places: NDArray[np.int64] = (words[inside >> 3] << 3) + (inside & 7)
    return places


def _encode_signs(chosen: Tensor, out: NDArray[np.uint8]) -> None:
    """float32[spans, k] -> two magnitudes and the codes of each span. Sums are torch's: the same bits as ever."""
    wide = chosen.abs().double()
    magnitudes = wide.numpy()
    is_high = magnitudes >= wide.mean(dim=1, keepdim=True).numpy()
    num_high = is_high.sum(axis=1, dtype=np.int32)
    means = np.empty((chosen.shape[0], 2))
    for column, (group, count) in enumerate(((~is_high, chosen.shape[1] - num_high), (is_high, num_high))):
        total = torch.from_numpy(magnitudes * group).sum(dim=1).numpy()
        np.divide(total, np.maximum(count, 1), out=means[:, column])
    out[:, :4] = torch.from_numpy(means).float().to(torch.bfloat16).view(torch.uint8).numpy()
    bits = np.empty((chosen.shape[0], 2 * chosen.shape[1]), dtype=np.bool_)
    np.less(chosen.numpy(), 0, out=bits[:, ::2])
    bits[:, 1::2] = is_high
    out[:, 4:] = np.packbits(bits, axis=1, bitorder="little")


def _decode_signs(raw: NDArray[np.uint8], k: int) -> Tensor:
    """float32[spans, k]."""
    levels = torch.from_numpy(raw[:, :4].copy()).view(torch.bfloat16).float()
    check_decoded(levels)
    both = levels.numpy()
    if (both < 0).any():
        raise bad_payload("a magnitude of a chunk is negative")
    bits = np.unpackbits(raw[:, 4:], axis=1, count=2 * k, bitorder="little")
    values = np.where(bits[:, 1::2], both[:, 1:], both[:, :1])
    return torch.from_numpy(np.where(bits[:, ::2], -values, values))


def _pack_positions(positions: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """int64[spans, k] below 4096 -> two in three bytes."""
    a, b = positions[:, ::2], positions[:, 1::2]
    out[:, ::3] = a & 255
    out[:, 1::3] = (a >> 8) | ((b & 15) << 4)
    out[:, 2::3] = b >> 4


def _unpack_positions(packed: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Two positions in three bytes -> int64[spans, k]."""
    low, middle, high = (packed[:, part::3].astype(np.int64) for part in range(3))
    positions = np.empty((packed.shape[0], 2 * low.shape[1]), dtype=np.int64)
    positions[:, ::2] = low | (middle & 15) << 8
    positions[:, 1::2] = middle >> 4 | high << 4
    return positions
