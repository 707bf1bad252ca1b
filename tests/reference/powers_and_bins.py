"""The e3m0 and int8bins payloads of float32[n], step by step, as compress/tables.py and bins.py must write them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GROUP = 4096
PAGE = 1 << 17
SCALE_MIN = 2.0**-64


def e3m0_payload(values: Tensor, block: int) -> bytes:
    """Scales, then nibbles (chapter 08, C3 and C4); one value at a time, in float64, which holds all of it exactly."""
    scales: list[int] = []
    codes: list[int] = []
    numbers = values.tolist()
    for start in range(0, len(numbers), block):
        row = numbers[start : start + block]
        scale = _nearest_power(max(abs(x) for x in row))
        exponent = math.frexp(scale)[1] - 1 if scale >= SCALE_MIN else -127
        scales.append(exponent & 255)
        codes += [_code(x, 2.0**-exponent if exponent > -127 else 0.0) for x in row]
    payload = bytes(scales)
    for start in range(0, len(codes), GROUP):
        group = codes[start : start + GROUP]
        half = -(-len(group) // 2)
        high = [*group[half:], 8][:half]
        payload += bytes(low | up << 4 for low, up in zip(group[:half], high, strict=True))
    return payload


def e3m0_values(payload: bytes, numel: int, block: int) -> Tensor:
    """float32[numel] of a payload, by hand."""
    num_blocks = -(-numel // block)
    codes: list[int] = []
    packed = payload[num_blocks:]
    while len(codes) < numel:
        count = min(GROUP, numel - len(codes))
        half = -(-count // 2)
        codes += [packed[j] & 15 if j < half else packed[j - half] >> 4 for j in range(count)]
        packed = packed[half:]
    levels = [0.0, *(2.0 ** (e - 7) for e in range(1, 8))]
    exponents = [raw - 256 if raw > 127 else raw for raw in payload[:num_blocks]]
    scales = [0.0 if exponent == -127 else 2.0**exponent for exponent in exponents]
    values = [scales[i // block] * levels[c & 7] * (-1 if c > 8 else 1) + 0.0 for i, c in enumerate(codes)]
    return torch.tensor(values, dtype=torch.float32)


def bins_payload(values: Tensor) -> bytes:
    """Levels of all pages, then bins; the sums of a bin in the order of its values."""
    levels, codes = b"", b""
    for page in values.split(PAGE):
        wide = page.double()
        mean = wide.mean()
        step = 2 * 6.0 * float((wide - mean).square().mean().sqrt()) / 256 or 1.0
        bins = ((wide - mean) / step + 128).floor().clamp(0, 255).to(torch.int64).tolist()
        sums, counts = [0.0] * 256, [0] * 256
        for place, number in zip(bins, wide.tolist(), strict=True):
            sums[place] += number
            counts[place] += 1
        means = [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]
        levels += bytes(torch.tensor(means, dtype=torch.float64).float().view(torch.uint8).tolist())
        codes += bytes(bins)
    return levels + codes


def _nearest_power(peak: float) -> float:
    """A half or less above a power goes down, more goes up."""
    if not peak:
        return 0.0
    mantissa, exponent = math.frexp(peak)
    return 2.0 ** (exponent - 1 if mantissa <= 0.75 else exponent)


def _code(value: float, inverse: float) -> int:
    magnitude = abs(value) * inverse
    level = 0
    if magnitude > 2.0**-7:
        level = max(1, round(math.log2(_nearest_power(magnitude))) + 7)
    return level + (8 if value < 0 else 0)
