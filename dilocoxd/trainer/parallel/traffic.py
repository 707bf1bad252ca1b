"""What ranks of one site tell each other in 16 bits: hidden states between stages, parameters that are gathered.

Where a parameter lies it stays float32, and so do its gradient where it is summed, its moments, and the residual stream
inside a stage. Source: arXiv 2304.11277 section 4.4 (FSDP, mixed precision).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from dilocoxd.models import StageModule

NARROW: Final = torch.bfloat16


def narrow_hidden(stage: StageModule) -> None:
    """Hidden states come to this stage and leave it as bfloat16, and with them their gradients."""
    if not stage.span.is_first:
        stage.register_forward_pre_hook(_widened)
    if not stage.span.is_last:
        stage.register_forward_hook(_narrowed)


def narrow_gathers(stage: StageModule) -> Any:
    """torch's policy for the blocks of `stage`: gathered in 16 bits, gradients summed in 32.

    Only for blocks, whose matrices autocast would round to the same bits anyway; of them vectors alone are less exact.
    What goes into a block is left as it is, for the residual stream is float32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    for block in stage.blocks():
        for module in block.modules():
            own = list(module.parameters(recurse=False))
            if own and all(parameter.dim() < 2 for parameter in own):
                inside: Any = module
                inside.forward = partial(_with_wide_vectors, module, inside.forward)
    return MixedPrecisionPolicy(param_dtype=NARROW, reduce_dtype=torch.float32, cast_forward_inputs=False)


def _with_wide_vectors(norm: nn.Module, forward: Any, *inputs: Any, **more: Any) -> Any:
    # A norm of float32 with a weight of 16 bits is refused by torch on CPUs (layer_norm), or not fused (rms_norm).
    gathered: Any = norm._parameters
    narrow = dict(gathered)
    gathered.update({name: values.float() for name, values in narrow.items() if values is not None})
    try:
        return forward(*inputs, **more)
    finally:
        gathered.update(narrow)


def _widened(_stage: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return inputs[0].float(), *inputs[1:]


def _narrowed(_stage: Any, _inputs: Any, hidden_BTD: Tensor) -> Tensor:
    return hidden_BTD.to(NARROW)
