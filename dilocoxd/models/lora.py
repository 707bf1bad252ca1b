"""LoRA: a frozen linear layer with two narrow trained matrices beside it (Hu et al., arXiv 2106.09685).

Own modules, for `peft` costs a process as much to import as transformers itself; names, shapes and arithmetic are
peft's, so what is exported gives the same logits there (tests/unit/models/test_lora.py).
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from dilocoxd.errors import ConfigError
from dilocoxd.models.config import Adapter

MARK: Final = ".lora_"
"""In the name of every parameter of an adapter."""
FROZEN: Final = ".base_layer."
"""In the local name of a frozen parameter below an adapted layer; the model's own name does without."""
EXPERT_NAMES: Final = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
"""Never adapted in a model with experts: peft takes these names for the experts, which are no linear layers here."""


class AdaptedLinear(nn.Module):
    """base_layer(x) + lora_B(lora_A(x)) * scale."""

    def __init__(self, base_layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        weight = base_layer.weight
        assert isinstance(weight, Tensor)
        outputs, inputs = weight.shape[::-1] if isinstance(base_layer, Conv1D) else weight.shape
        self.base_layer = base_layer
        self.lora_A = nn.Linear(inputs, adapter.rank, bias=False, device=weight.device)
        self.lora_B = nn.Linear(adapter.rank, outputs, bias=False, device=weight.device)
        self._scale = adapter.scale

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        added: Tensor = self.lora_B(self.lora_A(x)) * self._scale
        return self.base_layer(x) + added  # type: ignore[no-any-return]


def adapt(layers: nn.Module, adapter: Adapter, *, has_experts: bool) -> None:
    """Put an adapter beside the targets in `layers`, a list of blocks; `has_experts`: of a model with experts.

    Raises ConfigError if a target is no linear layer there, or a block would have nothing to train.
    """
    linear = {
        name: module
        for name, module in layers.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and not (has_experts and _leaf(name) in EXPERT_NAMES)
    }
    found = {name: module for name, module in linear.items() if not adapter.targets or _leaf(name) in adapter.targets}
    adapted = {_leaf(name) for name in found}
    unknown = sorted(set(adapter.targets) - adapted)
    if unknown:
        there = ", ".join(sorted({_leaf(name) for name in linear}))
        raise ConfigError(f"lora.targets: no linear layer is called {unknown[0]!r}; choose from {there}")
    bare = {name for name, _ in layers.named_children()} - {name.partition(".")[0] for name in found}
    if bare:
        raise ConfigError(f"lora.targets: block {min(bare)} would have no adapter; name a layer that each block has")
    for name, module in found.items():
        holder: Any = layers.get_submodule(name.rpartition(".")[0])
        setattr(holder, _leaf(name), AdaptedLinear(module, adapter))


def freeze(module: nn.Module) -> None:
    """Nothing but adapters gets gradients."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(MARK in f".{name}")


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
