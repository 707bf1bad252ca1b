"""Which codec a manifest's name means, with its options checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from dilocoxd.compress.blockint import SCALE_BYTES, BlockInt
from dilocoxd.compress.codec import Codec
from dilocoxd.compress.floats import FloatCodec
from dilocoxd.errors import ConfigError

BLOCK_MIN, BLOCK_MAX = 16, 4096


def codec_from_name(name: str, **options: Any) -> Codec:
    """The codec that a manifest calls `name`. Raises ConfigError for unknown names, options or values.

    Names and options (defaults first): `fp32`, `fp16`, `bf16`: none. `int8`: block=256 (a power of two from 16 to
    4096), scale="fp32" | "bf16" | "pow2". `int4`: block=128, scale="bf16" | "fp32" | "pow2".
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        raise ConfigError(f"codec {name!r} is unknown; use one of {', '.join(sorted(_FACTORIES))}")
    try:
        return factory(**options)
    except TypeError:
        given = ", ".join(sorted(options))
        raise ConfigError(f"codec {name!r} does not take the option(s) {given}; remove what it does not know") from None


def codec_names() -> tuple[str, ...]:
    """Every name that `codec_from_name` knows, sorted."""
    return tuple(sorted(_FACTORIES))


def _block_int(bits: Literal[4, 8], block: int, scale: str) -> BlockInt:
    if not isinstance(block, int) or not BLOCK_MIN <= block <= BLOCK_MAX or block & (block - 1):
        raise ConfigError(f"int{bits} block is {block}; use a power of two from {BLOCK_MIN} to {BLOCK_MAX}")
    for known in SCALE_BYTES:
        if known == scale:
            return BlockInt(bits, block, known)
    raise ConfigError(f"int{bits} scale is {scale!r}; use one of {', '.join(SCALE_BYTES)}")


def _int8(block: int = 256, scale: str = "fp32") -> Codec:
    return _block_int(8, block, scale)


def _int4(block: int = 128, scale: str = "bf16") -> Codec:
    return _block_int(4, block, scale)


def _fp32() -> Codec:
    return FloatCodec("fp32", torch.float32)


def _fp16() -> Codec:
    return FloatCodec("fp16", torch.float16)


def _bf16() -> Codec:
    return FloatCodec("bf16", torch.bfloat16)


_FACTORIES: dict[str, Callable[..., Codec]] = {
    "fp32": _fp32,
    "fp16": _fp16,
    "bf16": _bf16,
    "int8": _int8,
    "int4": _int4,
}
