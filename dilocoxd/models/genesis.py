"""Genesis: the first value of every parameter, the same bits on every machine.

Normal variates need log and cos, whose last bit differs between CPU types. Here a value is a sum of four uniform
integers (a bell shape) times one scale: integers are exact, and the single product is rounded once, as IEEE 754 says.
Source: issue 2 (no site copies a first state), protocol chapter on the run manifest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

import torch
from torch import Tensor

from dilocoxd.models.config import ModelConfig
from dilocoxd.wire.layout import ParamSpec

_UNIFORM_BITS: Final = 16
_NUM_UNIFORMS: Final = 4
_CHUNK_ELEMENTS: Final = 1 << 18
"""Part of the definition: the generator is read chunk by chunk, four draws per chunk."""

_SUM_STD: Final = math.sqrt(_NUM_UNIFORMS * ((1 << 2 * _UNIFORM_BITS) - 1) / 12.0)
ZERO_SUFFIXES: Final = (".bias", "_bias", ".sinks", ".lora_B.weight")
_NARROW_SUFFIX: Final = ".lora_A.weight"
_RESIDUAL_SUFFIXES: Final = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def init_std(name: str, base_std: float, num_layers: int) -> float:
    """Standard deviation for a matrix: projections into the residual stream shrink with depth (GPT-2 rule)."""
    if name.endswith(_RESIDUAL_SUFFIXES):
        return base_std / math.sqrt(2.0 * num_layers)
    return base_std


def init_parameter(
    name: str,
    shape: Sequence[int],
    seed: int,
    out: Tensor,
    *,
    std: float = 0.02,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Fill ``out`` (flat float32, numel of ``shape``) with the first value of parameter ``name``.

    Norm weights are 1, biases, attention sinks and the wide half of an adapter 0, everything else bell-shaped with
    deviation ``std``. Depends on nothing but the arguments: not on the split into stages, thread count or CPU type.
    `progress` is called about 1000 times a second.
    """
    if out.dtype != torch.float32 or out.numel() != math.prod(shape):
        raise ValueError(f"{name}: out must be {math.prod(shape)} float32 values, not {out.numel()} {out.dtype}")
    init_stretch(ParamSpec(name, tuple(shape)), seed, out, 0, std=std, progress=progress)


def init_stretch(
    spec: ParamSpec,
    seed: int,
    out: Tensor,
    first: int,
    *,
    std: float,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """As `init_parameter`, but only the elements from ``first`` on that ``out`` has room for."""
    name, numel, stop = spec.name, spec.numel, first + out.numel()
    if len(spec.shape) < 2 or name.endswith(ZERO_SUFFIXES):
        out.fill_(0.0 if name.endswith(ZERO_SUFFIXES) else 1.0)
        return
    generator = torch.Generator(device="cpu")
    generator.manual_seed(crc32(name.encode()) ^ seed)
    # The quotient of two doubles is rounded once, and once more to float32: the same bits everywhere.
    scale = torch.tensor(std / _SUM_STD, dtype=torch.float32)
    half = 1 << (_UNIFORM_BITS - 1)
    flat = out.view(-1)
    for start in range(0, stop, _CHUNK_ELEMENTS):
        end = min(start + _CHUNK_ELEMENTS, numel)
        # Also of what lies before `first`: the generator is read in order.
        draws = torch.randint(
            -half, half, (_NUM_UNIFORMS, end - start), generator=generator, dtype=torch.int32, device="cpu"
        )
        if end > first:
            low, high = max(start, first), min(end, stop)
            # Each draw has mean -1/2: adding half the count centres the sum; below 2**18, exact in float32.
            total = draws[:, low - start : high - start].sum(dim=0, dtype=torch.int32) + _NUM_UNIFORMS // 2
            flat[low - first : high - first].copy_(total.to(torch.float32) * scale)
        progress()


def init_of_model(
    config: ModelConfig,
    spec: ParamSpec,
    seed: int,
    out: Tensor,
    progress: Callable[[], None] = lambda: None,
    *,
    first: int = 0,
) -> None:
    """Fill ``out`` with the first value of a parameter of this model from ``first`` on, as `init_parameter` does.

    Norm weights that the family adds to 1 start at 0. The narrow half of an adapter has the deviation that peft gives
    it, sqrt(1 / (3 x inputs)).
    """
    if config.zero_centred_norms and len(spec.shape) < 2:
        out.fill_(0.0)
        return
    std = init_std(spec.name, config.init_std, config.num_layers)
    if spec.name.endswith(_NARROW_SUFFIX):
        std = 1.0 / math.sqrt(3.0 * spec.shape[1])
    init_stretch(spec, seed, out, first, std=std, progress=progress)
