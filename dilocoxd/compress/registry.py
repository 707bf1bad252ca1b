"""Which codec a manifest's name means, with its options checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from dilocoxd.compress.bins import BinMeans
from dilocoxd.compress.blockint import BlockInt
from dilocoxd.compress.codec import Codec
from dilocoxd.compress.floats import FloatCodec
from dilocoxd.compress.loops import SCALE_BYTES
from dilocoxd.compress.tables import E3M0
from dilocoxd.compress.topk import SPAN, TopK
from dilocoxd.compress.twobit import Int2
from dilocoxd.errors import ConfigError

BLOCK_MIN, BLOCK_MAX = 16, 4096


def codec_from_name(name: str, **options: Any) -> Codec:
    """The codec that a manifest calls `name`. Raises ConfigError for unknown names, options or values.

    Names and options (defaults first): `fp32`, `fp16`, `bf16`: none. `int8`: block=256 (a power of two from 16 to
    4096), scale="fp32" | "bf16" | "pow2" | "short". `int4`: block=128, scale="bf16" | ..., both
    rounding="nearest" | "stochastic". `int8bins`: none.
    `e3m0`, `int2`: block=128. `topk`: k=64 (even, of every 4096), values="2bit" | "fp32".
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        raise ConfigError(f"codec {name!r} is unknown; use one of {', '.join(codec_names())}")
    try:
        return factory(**options)
    except TypeError:
        given = ", ".join(sorted(options))
        raise ConfigError(f"codec {name!r} does not take the option(s) {given}; remove what it does not know") from None


def codec_names() -> tuple[str, ...]:
    """Every name that `codec_from_name` knows, sorted."""
    return tuple(sorted(_FACTORIES))


def _checked_block(name: str, block: int) -> int:
    if not isinstance(block, int) or not BLOCK_MIN <= block <= BLOCK_MAX or block & (block - 1):
        raise ConfigError(f"{name} block is {block}; use a power of two from {BLOCK_MIN} to {BLOCK_MAX}")
    return block


def _block_int(bits: Literal[4, 8], block: int, scale: str, rounding: str) -> BlockInt:
    _checked_block(f"int{bits}", block)
    if rounding not in {"nearest", "stochastic"}:
        raise ConfigError(f"int{bits} rounding is {rounding!r}; use nearest or stochastic")
    for known in SCALE_BYTES:
        if known == scale:
            return BlockInt(bits, block, known, is_stochastic=rounding == "stochastic")
    raise ConfigError(f"int{bits} scale is {scale!r}; use one of {', '.join(SCALE_BYTES)}")


def _int8(block: int = 256, scale: str = "fp32", rounding: str = "nearest") -> Codec:
    return _block_int(8, block, scale, rounding)


def _int4(block: int = 128, scale: str = "bf16", rounding: str = "nearest") -> Codec:
    return _block_int(4, block, scale, rounding)


def _e3m0(block: int = 128) -> Codec:
    return E3M0(_checked_block("e3m0", block))


def _int2(block: int = 128) -> Codec:
    return Int2(_checked_block("int2", block))


def _topk(k: int = 64, values: str = "2bit") -> Codec:
    if not isinstance(k, int) or not 2 <= k <= SPAN or k % 2:
        raise ConfigError(f"topk k is {k}; use an even number from 2 to {SPAN}")
    if values == "2bit":
        return TopK(k, "2bit")
    if values == "fp32":
        return TopK(k, "fp32")
    raise ConfigError(f"topk values is {values!r}; use 2bit or fp32")


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
    "int8bins": BinMeans,
    "int4": _int4,
    "e3m0": _e3m0,
    "int2": _int2,
    "topk": _topk,
}
