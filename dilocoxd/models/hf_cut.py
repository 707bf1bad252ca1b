"""Any decoder of transformers as stages, by one generic cut: the library's own module without the layers of others.

The whole model is built on the meta device from its config.json, so that each layer knows its real place; a stage keeps
its layers, the first the embedding, the last norm and head. Masks and rotary positions are recomputed per stage. Which
families this is exact for is a list (config/hugging_face.py), proved at each start by models/hf_check.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.nn import functional
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

from dilocoxd.config.hugging_face import parse_config, sizes
from dilocoxd.errors import ConfigError
from dilocoxd.models.bounds import NO_MEMORY, said
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.lora import FROZEN, MARK, adapt, freeze
from dilocoxd.models.stage import StageModule, rows_here


@dataclass(frozen=True, slots=True)
class ChildNames:
    """What a base model calls its parts. `positions`: a learnt position embedding, or empty."""

    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    positions: str = ""


_OTHER_NAMES: Final = {
    "gpt_neox": ChildNames("embed_in", "layers", "final_layer_norm"),
    "gpt2": ChildNames("wte", "h", "ln_f", positions="wpe"),
}
_PER_LAYER: Final = ("layer_types", "mlp_layer_types")
_READ_AS: Final = {
    "num_hidden_layers": "num_layers", "vocab_size": "vocab_size", "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
}  # fmt: skip
"""Of a config object to what the manifest bounds."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_DROPOUTS: Final = ("attention_dropout", "hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop")
"""Off: what a site computes must not depend on how its model is cut, and its validation loss on no dice."""
_WITHOUT_SDPA: Final = ("gpt_oss",)
"""Attention sinks are only in the eager attention on CPUs."""


class NoPositions(nn.Module):
    """In the place of a learnt position embedding at stages after the first: adds nothing."""

    def forward(self, position_ids: Tensor) -> Tensor:
        """Zeros that broadcast against hidden states."""
        return torch.zeros((*position_ids.shape, 1), device=position_ids.device)


class CutStage(StageModule):
    """Layers of one span of a transformers decoder, under the names of the whole model."""

    takes_positions = True
    takes_targets = True

    def __init__(self, config: ModelConfig, span: StageSpan, device: torch.device) -> None:
        super().__init__()
        self.span = span
        full = library_config(config)
        self._names = _OTHER_NAMES.get(full.model_type, ChildNames())
        with torch.device("meta"):
            model = new_model(full)
        self._prefix = str(model.base_model_prefix)
        base = model.base_model
        self._keep_span(base, full)
        self._is_adapted = config.adapter is not None
        if config.adapter is not None:
            has_experts = any(getattr(full, name, None) for name in _EXPERTS)
            adapt(getattr(base, self._names.layers), config.adapter, has_experts=has_experts)
        self.base = base
        self._cap = getattr(full, "final_logit_softcapping", None)
        self._is_tied = bool(full.tie_word_embeddings)
        self.lm_head: nn.Module | None = model.lm_head if span.is_last and not self._is_tied else None
        self.tied_copy: nn.Parameter | None = None
        if self._is_tied and span.is_last and not span.is_first:
            self.tied_copy = nn.Parameter(torch.empty(full.vocab_size, config.hidden_size, device="meta"))
        _train_no_buffers(base)
        if self._is_adapted:
            freeze(self)
        if device.type != "meta":
            self.to_empty(device=device)
            _fill_buffers(base)
        self.train()

    def _keep_span(self, base: Any, full: Any) -> None:
        span, names = self.span, self._names
        layers = getattr(base, names.layers)
        setattr(base, names.layers, nn.ModuleList(layers[span.first_layer : span.end_layer]))
        base.config = _sliced(full, span)
        if not span.is_first:
            setattr(base, names.embedding, None)
            if names.positions:
                setattr(base, names.positions, NoPositions())
        if not span.is_last:
            setattr(base, names.norm, nn.Identity())

    def global_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under the names of the whole model, in its order. A tied head is the embedding, once.

        With an adapter, its parameters alone.
        """
        return ((name, param) for name, param in self._all() if not self._is_adapted or MARK in name)

    def frozen_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """With an adapter, all other parameters, a tied head too."""
        if not self._is_adapted:
            return
        yield from ((name.replace(FROZEN, "."), param) for name, param in self._all() if MARK not in name)
        if self.tied_copy is not None:
            yield f"{self._prefix}.{self._names.embedding}.weight", self.tied_copy

    def _all(self) -> Iterator[tuple[str, nn.Parameter]]:
        start = f"{self._names.layers}."
        for local, param in self.base.named_parameters():
            name = local
            if local.startswith(start):
                index, _, leaf = local.removeprefix(start).partition(".")
                name = f"{start}{int(index) + self.span.first_layer}.{leaf}"
            yield f"{self._prefix}.{name}", param
        if self.lm_head is not None:
            for name, param in self.lm_head.named_parameters():
                yield f"lm_head.{name}", param

    def borrowed_embedding(self) -> nn.Parameter | None:
        """The head of a last stage with tied embeddings; a frozen one is read from its file instead."""
        return None if self._is_adapted else self.tied_copy

    def own_embedding(self) -> nn.Parameter | None:
        """The embedding, if the last stage borrows it."""
        is_lent = self._is_tied and not self._is_adapted and self.span.is_first and not self.span.is_last
        return getattr(self.base, self._names.embedding).weight if is_lent else None

    def blocks(self) -> Iterator[nn.Module]:
        """The layers of the span."""
        return iter(getattr(self.base, self._names.layers))

    def forward(self, x: Tensor, positions_BT: Tensor | None = None, targets_BT: Tensor | None = None) -> Tensor:
        """Ids or hidden states in, hidden states, logits or the sum of losses out."""
        # The library keeps apart what positions that begin anew tell apart, without a mask or a cache.
        inputs = {"input_ids" if self.span.is_first else "inputs_embeds": x, "position_ids": positions_BT}
        hidden: Tensor = self.base(**inputs, use_cache=False).last_hidden_state
        return self.output(hidden, targets_BT)

    def token_matrices(self) -> Iterator[tuple[nn.Module, str]]:
        """Embedding and head, or the copy of a tied one."""
        if self.span.is_first:
            yield getattr(self.base, self._names.embedding), "weight"
        if self.lm_head is not None:
            yield self.lm_head, "weight"
        if self.tied_copy is not None:
            yield self, "tied_copy"

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """The head, or the embedding where both are one, and the family's cap."""
        if self.lm_head is not None:
            logits: Tensor = self.lm_head(hidden_BTD)
        else:
            weight = self.tied_copy
            if weight is None:
                weight = getattr(self.base, self._names.embedding).weight
            logits = functional.linear(hidden_BTD, rows_here(weight))
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def new_cache(self) -> Any:
        """transformers' own, which knows the family's sliding windows."""
        return DynamicCache(config=self.base.config)

    def extend(self, ids_BT: Tensor, cache: Any) -> Tensor:
        """Logits of tokens that follow those in the cache."""
        return self.logits(self.base(input_ids=ids_BT, past_key_values=cache, use_cache=True).last_hidden_state)


def library_config(config: ModelConfig) -> Any:
    """transformers' config object of model.config. Raises ConfigError when the library refuses it, or reads other
    sizes than the run."""
    table = parse_config(config.config)
    found = config_object(table)
    _require_sizes(found, table)
    return found


def config_object(table: dict[str, Any]) -> Any:
    """transformers' config object of a config.json. Raises ConfigError when the library refuses it."""
    try:
        found = CONFIG_MAPPING[table["model_type"]].from_dict(dict(table))
        found.use_cache = False
        found.dtype = torch.float32
        for name in _DROPOUTS:
            if getattr(found, name, None) is not None:
                setattr(found, name, 0.0)
    except (TypeError, ValueError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ConfigError(f"transformers refuses config.json of a {table.get('model_type')}: {said(error)}") from error
    return found


def _require_sizes(found: Any, table: dict[str, Any]) -> None:
    """What the manifest bounds is what the library builds, whichever family's name for it stands there."""
    known = sizes(table)
    for name, ours in _READ_AS.items():
        if getattr(found, name, None) != known[ours]:
            raise ConfigError(
                f"transformers reads {name} = {getattr(found, name, None)} in this config.json, a run {known[ours]};"
                f" give it as {name}, once"
            )


def new_model(config: Any) -> Any:
    """The library's whole model, with the attention that stages use. Raises ConfigError when it cannot be built."""
    attention = "eager" if config.model_type in _WITHOUT_SDPA else "sdpa"
    try:
        # Typed here once: the factories of transformers carry no annotations.
        factory: Any = AutoModelForCausalLM
        return factory.from_config(config, attn_implementation=attention)
    except (
        *(TypeError, ValueError, KeyError, IndexError, AttributeError, AssertionError, RuntimeError, ArithmeticError),
    ) as error:
        if any(word in str(error) for word in NO_MEMORY):
            raise
        raise ConfigError(f"transformers cannot build a {config.model_type} from config.json: {said(error)}") from error


def _sliced(full: Any, span: StageSpan) -> Any:
    part = copy.deepcopy(full)
    part.num_hidden_layers = span.end_layer - span.first_layer
    for name in _PER_LAYER:
        if getattr(full, name, None) is not None:
            setattr(part, name, getattr(full, name)[span.first_layer : span.end_layer])
    return part


def _train_no_buffers(base: nn.Module) -> None:
    """What is saved with the model but not trained (DeepSeek's expert bias) becomes a parameter without gradient, so
    that it has its place in the shared state like everything else."""
    for module in base.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name not in module._non_persistent_buffers_set:
                delattr(module, name)
                module.register_parameter(name, nn.Parameter(torch.empty_like(buffer), requires_grad=False))


@torch.no_grad()
def _fill_buffers(base: Any) -> None:
    """Rotary frequencies and input scales are not saved: they did not survive the meta device. The library's own
    initialisation computes them again; what it draws for parameters is overwritten by whoever loads them."""
    with torch.random.fork_rng(devices=[]):
        for module in base.modules():
            if next(module.named_buffers(recurse=False), None) is not None:
                base._init_weights(module)
