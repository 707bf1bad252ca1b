"""Float codecs: fp32 (4 bytes a value, exact), fp16 and bf16 (2 bytes, round to nearest even).

Byte layout: the n values in order, little-endian IEEE 754. fp16 saturates at +-65504 and bf16 at +-2**64; what is cut
off stays in the error feedback. Conversions to and from half formats are single IEEE roundings on every CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dilocoxd.compress.codec import CHUNK, Codec, check_decoded, check_encodable, load, store

FP16_MAX = 65504.0


class FloatCodec(Codec):
    """Every value on its own in one float format."""

    chunk = CHUNK // 2

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def payload_bytes(self, numel: int) -> int:
        return numel * self._dtype.itemsize

    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        check_encodable(values.abs())
        if self._dtype == torch.float16:
            values = values.clamp(-FP16_MAX, FP16_MAX)
        size = self._dtype.itemsize
        store(values.to(self._dtype), out[start * size : (start + values.numel()) * size])

    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        size = self._dtype.itemsize
        raw = payload[start * size : (start + out.numel()) * size]
        if self._dtype == torch.float32:
            out.view(torch.uint8).copy_(raw)
        else:
            out.copy_(load(raw, self._dtype))
        check_decoded(out)
