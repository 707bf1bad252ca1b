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
    "int4 scale=short": {"scale": "short"},
    "int8bins": {},
    "e3m0": {},
    "e3m0 block=32": {"block": 32},
    "int2": {},
    "topk": {},
    "topk k=6": {"k": 6},
    "topk k=512 values=fp32": {"k": 512, "values": "fp32"},
}

UNIFORM = [label for label in VARIANTS if label.split()[0] in {"fp32", "fp16", "bf16", "int8", "int4"}]
"""Each value is within half a step of its own block."""
RELATIVE_ERROR = {"fp32": 0.0, "fp16": 1e-3, "bf16": 4e-3, "int8": 0.02, "int8bins": 0.02, "int4": 0.2, "e3m0": 0.2}
"""Of Gaussian vectors, by codec; the others: int2 0.37, top-k what the k largest leave."""


def relative_error(codec: Codec, label: str) -> float:
    if codec.name == "topk":
        return 0.995 if "k=6" in label else 0.95
    return RELATIVE_ERROR.get(codec.name, 0.37)


def make(label: str) -> Codec:
    return codec_from_name(label.split()[0], **VARIANTS[label])
