"""Every codec variant that a manifest can name, and the bound its documentation gives for the error of one value."""

from __future__ import annotations

from dilocoxd.compress.codec import Codec
from dilocoxd.compress.registry import codec_from_name

VARIANTS: dict[str, dict[str, object]] = {
    "fp32": {},
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int8 block=4096 scale=pow2": {"block": 4096, "scale": "pow2"},
    "int8 block=64 scale=bf16": {"block": 64, "scale": "bf16"},
    "int4": {},
    "int4 block=64 scale=fp32": {"block": 64, "scale": "fp32"},
    "int4 block=16 scale=pow2": {"block": 16, "scale": "pow2"},
    "int4 scale=pow2": {"scale": "pow2"},
}


def make(label: str) -> Codec:
    return codec_from_name(label.split()[0], **VARIANTS[label])
