"""float32 values in the number formats that other tools read, rounded to nearest, ties to even."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dilocoxd.errors import ConfigError

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """`tag`: its name in safetensors. `convert`: little-endian bytes of float32 values. Raises ConfigError."""

    name: str
    tag: str
    item_bytes: int
    convert: Callable[[Floats], bytes]


def to_float32(values: Floats) -> bytes:
    """The same values."""
    return values.astype("<f4", copy=False).tobytes()


def to_bfloat16(values: Floats) -> bytes:
    """The upper halves, rounded; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    halves = np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")
    return halves.tobytes()


def to_float16(values: Floats) -> bytes:
    """Half precision. Raises ConfigError for a finite value above 65504."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.array_equal(np.isfinite(halves), np.isfinite(values)):
        raise ConfigError("a parameter is too large for float16 (above 65504); export as bfloat16 or float32")
    return halves.tobytes()


FORMATS: Final = {
    one.name: one
    for one in (
        NumberFormat("float32", "F32", 4, to_float32),
        NumberFormat("bfloat16", "BF16", 2, to_bfloat16),
        NumberFormat("float16", "F16", 2, to_float16),
    )
}
