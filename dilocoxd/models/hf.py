"""Decoder models of transformers as stages: the model's own classes, built with the layers of one span only.

A stage is a base model with ``num_hidden_layers`` = its share, called with ``inputs_embeds``; masks and rotary
positions are recomputed per stage, so that only hidden states travel. Which families this is exact for is a white
list, and ``check_family`` proves it again at start-up on a tiny config of the same type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache

from dilocoxd.errors import ConfigError
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.stage import StageModule

_TOP_LEVEL = ("embed_tokens", "layers", "norm", "rotary_emb")


class HfStage(StageModule):
    """Layers of one span of a transformers decoder."""

    takes_positions = True
    takes_targets = True

    def __init__(self, config: ModelConfig, span: StageSpan, device: torch.device) -> None:
        super().__init__()
        self.span = span
        full = transformers_config(config)
        part = _sliced_config(full, span)
        with torch.device("meta"):
            base = _from_config(AutoModel, part)
            self.lm_head = nn.Linear(full.hidden_size, full.vocab_size, bias=False) if span.is_last else None
        _require_known_shape(base, config.kind)
        if not span.is_first:
            base.embed_tokens = None
        if not span.is_last:
            base.norm = nn.Identity()
        self.base = base
        self.to_empty(device=device)
        # Rotary frequencies are a buffer that is not saved: they did not survive the meta device.
        base.rotary_emb = type(base.rotary_emb)(config=part).to(device)
        self.train()

    def global_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under the names of the full model, in canonical order."""
        local = dict(self.base.named_parameters())
        by_prefix = {
            prefix: [name for name in local if name.startswith(f"{prefix}.")]
            for prefix in ("embed_tokens", "layers", "norm")
        }
        for prefix in ("embed_tokens", "layers", "norm"):
            for name in by_prefix[prefix]:
                yield self._global_name(name), local[name]
        if self.lm_head is not None:
            for name, param in self.lm_head.named_parameters():
                yield f"lm_head.{name}", param

    def _global_name(self, local_name: str) -> str:
        head, _, rest = local_name.partition(".")
        if head != "layers":
            return f"model.{local_name}"
        index, _, leaf = rest.partition(".")
        return f"model.layers.{int(index) + self.span.first_layer}.{leaf}"

    def blocks(self) -> Iterator[nn.Module]:
        """The layers of the span."""
        return iter(self.base.layers)

    def forward(self, x: Tensor, positions_BT: Tensor | None = None, targets_BT: Tensor | None = None) -> Tensor:
        """Ids or hidden states in, hidden states, logits or the sum of losses out."""
        hidden = self.base.embed_tokens(x) if self.span.is_first else x
        out: Tensor = self.base(inputs_embeds=hidden, position_ids=positions_BT, use_cache=False).last_hidden_state
        return self.output(out, targets_BT)

    def token_matrices(self) -> Iterator[tuple[nn.Module, str]]:
        """Embedding and head."""
        embedding = self.base.embed_tokens if self.span.is_first else None
        return ((module, "weight") for module in (embedding, self.lm_head) if module is not None)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """The head."""
        assert self.lm_head is not None
        logits_BTV: Tensor = self.lm_head(hidden_BTD)
        return logits_BTV

    def new_cache(self) -> Any:
        """transformers' own, which knows the family's sliding windows."""
        return DynamicCache(config=self.base.config)

    def extend(self, ids_BT: Tensor, cache: Any) -> Tensor:
        """Logits of tokens that follow those in the cache."""
        out = self.base(inputs_embeds=self.base.embed_tokens(ids_BT), past_key_values=cache, use_cache=True)
        return self.logits(out.last_hidden_state)


def transformers_config(config: ModelConfig) -> Any:
    """The transformers config object of ``config``; raises ConfigError when transformers refuses it."""
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": False,
        "use_cache": False,
    }
    clash = sorted(set(fields) & set(config.extra) - {"rope_parameters"})
    if clash:
        raise ConfigError(f"model.extra repeats {clash}, which the model section already sets: remove it from extra")
    try:
        return AutoConfig.for_model(config.kind, **{**fields, **config.extra})
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"transformers refuses the model config of type {config.kind}: {error}") from error


def check_family(config: ModelConfig) -> None:
    """Raise ConfigError unless two stages of a tiny model of this family equal the full transformers model."""
    tiny = ModelConfig(
        kind=config.kind,
        vocab_size=64,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=48,
        seq_len=16,
        norm_eps=config.norm_eps,
        extra=config.extra,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        full = _from_config(AutoModelForCausalLM, transformers_config(tiny)).eval()
        ids = torch.randint(0, 64, (2, 16))
    weights = full.state_dict()
    hidden: Tensor = ids
    with torch.no_grad():
        for index in range(2):
            stage = HfStage(tiny, StageSpan(index, 2, index, index + 1), torch.device("cpu")).eval()
            for name, param in stage.global_parameters():
                param.copy_(weights[name])
            hidden = stage(hidden)
        expected = full(input_ids=ids, use_cache=False).logits
    if not torch.equal(hidden, expected):
        worst = float((hidden - expected).abs().max())
        raise ConfigError(
            f"model.kind {config.kind!r} with these options cannot be cut into stages: the chain of stages differs "
            f"from the full model by {worst:.3g}; remove model.extra or use another family"
        )


def _from_config(factory: Any, config: Any) -> Any:
    # Typed here once: the factories of transformers carry no annotations.
    try:
        return factory.from_config(config, attn_implementation="sdpa")
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"transformers cannot build a {config.model_type} from model.extra: {error!r}") from error


def _sliced_config(full: Any, span: StageSpan) -> Any:
    part = copy.deepcopy(full)
    part.num_hidden_layers = span.end_layer - span.first_layer
    layer_types = getattr(full, "layer_types", None)
    if layer_types is not None:
        part.layer_types = layer_types[span.first_layer : span.end_layer]
    return part


def _require_known_shape(base: nn.Module, kind: str) -> None:
    found = tuple(name for name, _ in base.named_children())
    if sorted(found) != sorted(_TOP_LEVEL):
        raise ConfigError(f"model.kind {kind!r}: this transformers version builds it from {found}, not {_TOP_LEVEL}")
