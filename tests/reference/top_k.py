"""The topk payload of float32[n], step by step with torch.topk, as compress/topk.py must write it."""

from __future__ import annotations

import torch
from torch import Tensor

SPAN = 4096


def topk_payload(values: Tensor, k: int, form: str) -> bytes:
    """Positions, then values of each span (chapter 08, C3)."""
    rows = torch.nn.functional.pad(values, (0, -values.numel() % SPAN)).view(-1, SPAN)
    positions = rows.abs().topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    chosen = rows.gather(1, positions)
    wide = chosen.abs().double()
    is_high = wide >= wide.mean(dim=1, keepdim=True)
    means = [(wide * group).sum(dim=1) / group.sum(dim=1).clamp(min=1) for group in (~is_high, is_high)]
    levels = torch.stack(means, dim=1).float().bfloat16()
    payload = b""
    for span in range(rows.shape[0]):
        at = positions[span].tolist()
        for a, b in zip(at[::2], at[1::2], strict=True):
            payload += bytes([a & 255, a >> 8 | (b & 15) << 4, b >> 4])
        if form == "fp32":
            payload += bytes(chosen[span].view(torch.uint8).tolist())
            continue
        payload += bytes(levels[span].view(torch.uint8).tolist())
        codes = [
            int(value < 0) | 2 * int(high)
            for value, high in zip(chosen[span].tolist(), is_high[span].tolist(), strict=True)
        ]
        codes += [0] * (-k % 4)
        payload += bytes(
            codes[i] | codes[i + 1] << 2 | codes[i + 2] << 4 | codes[i + 3] << 6 for i in range(0, len(codes), 4)
        )
    return payload


def topk_values(payload: bytes, numel: int, k: int, form: str) -> Tensor:
    """float32[numel] of a payload, by hand."""
    out = torch.zeros(-(-numel // SPAN) * SPAN)
    size = k // 2 * 3 + (4 * k if form == "fp32" else 4 + -(-k // 4))
    for span, first in enumerate(range(0, len(payload), size)):
        raw, rest = payload[first : first + k // 2 * 3], payload[first + k // 2 * 3 : first + size]
        for index in range(k):
            low, middle, high = raw[index // 2 * 3 : index // 2 * 3 + 3]
            place = span * SPAN + ((middle >> 4 | high << 4) if index % 2 else (low | (middle & 15) << 8))
            if form == "fp32":
                out[place] = torch.frombuffer(bytearray(rest[4 * index : 4 * index + 4]), dtype=torch.float32)[0]
                continue
            code = rest[4 + index // 4] >> 2 * (index % 4) & 3
            level = torch.frombuffer(bytearray(rest[:4]), dtype=torch.bfloat16)[code >> 1].float()
            out[place] = -level if code & 1 else level
    return out[:numel]
