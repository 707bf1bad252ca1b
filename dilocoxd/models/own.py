"""A model that another package brings (store/installed_models.py): its class is built like any other stage.

What a run relies on is proved at each start on a tiny model: the chain of stages equals the whole to the bit, and the
stages have the whole model's parameters, in its order, each once.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from dilocoxd.errors import ConfigError
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.stage import StageModule
from dilocoxd.store.installed_models import required_model

_CPU: Final = torch.device("cpu")
_THEIR_ERRORS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError),
)
"""What wrong code raises: it is somebody else's, and its user is told which package failed and how."""


def own_stage(config: ModelConfig, span: StageSpan, device: torch.device) -> StageModule:
    """Stage of the run's own model. Raises ConfigError if it is not installed, or cannot be built."""
    found = required_model(config.entry_point, config.entry_sha256)
    try:
        made: Any = getattr(importlib.import_module(found.module), found.attribute)(config, span, device)
    except _THEIR_ERRORS as error:
        raise ConfigError(f"model {found.name!r} cannot be built ({found.path}): {error!r}") from error
    if not isinstance(made, StageModule):
        raise ConfigError(
            f"model {found.name!r}: {found.module}.{found.attribute} is no dilocoxd.models.StageModule; make it one"
        )
    return made


def check_own(config: ModelConfig) -> None:
    """Raise ConfigError unless stages of a tiny model of this class chain to the whole model, to the bit."""
    small = tiny(config)
    whole = own_stage(small, StageSpan(0, 1, 0, 2), _CPU).eval()
    chain = [own_stage(small, StageSpan(index, 2, index, index + 1), _CPU).eval() for index in range(2)]
    shapes = _shapes(whole)
    names = [name for stage in chain for name in _shapes(stage)]
    if names != list(shapes):
        odd = sorted(set(names) ^ set(shapes)) or names
        raise ConfigError(
            f"model {config.entry_point!r}: the stages' parameters are not those of the whole model, in its order"
            f" ({odd[0]}); global_parameters must yield each once, under a name with its layer's number"
        )
    random = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=random) * 0.05 for name, shape in shapes.items()}
    ids = torch.randint(0, small.vocab_size, (2, small.seq_len), generator=random)
    expected = _run(config, [whole], weights, ids)
    found = _run(config, chain, weights, ids)
    if tuple(expected.shape) != (*ids.shape, small.vocab_size):
        raise ConfigError(
            f"model {config.entry_point!r} gives {list(expected.shape)} for ids {list(ids.shape)}, not logits"
            f" {[*ids.shape, small.vocab_size]}"
        )
    if not torch.equal(found, expected):
        worst = float((found - expected).abs().max())
        raise ConfigError(
            f"model {config.entry_point!r} cannot be cut into stages: a chain of two differs from the whole model by"
            f" {worst:.3g}; let nothing but the hidden states pass from layer to layer"
        )
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % small.vocab_size
    if not torch.equal(_run(config, [whole], weights, changed)[:, :-1], expected[:, :-1]):
        raise ConfigError(
            f"model {config.entry_point!r} sees later tokens, on which the logits of a place must not depend"
        )


def tiny(config: ModelConfig) -> ModelConfig:
    """The same model in small: two narrow layers, with grouped heads if it has them."""
    return replace(
        config,
        vocab_size=64,
        hidden_size=32,
        num_layers=2,
        intermediate_size=48,
        seq_len=16,
        num_heads=4,
        num_kv_heads=4 if config.num_heads == config.num_kv_heads else 2,
    )


def _shapes(stage: StageModule) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in stage.global_parameters()}


@torch.no_grad()
def _run(config: ModelConfig, stages: list[StageModule], weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    try:
        hidden = ids
        for stage in stages:
            for name, parameter in stage.global_parameters():
                parameter.copy_(weights[name])
            hidden = stage(hidden)
    except _THEIR_ERRORS as error:
        raise ConfigError(f"model {config.entry_point!r} cannot compute: {error!r}") from error
    return hidden
