"""The proof at start-up that a model of transformers can be cut: a tiny one of its config, stages against whole."""

from __future__ import annotations

import json
from typing import Any, Final

import torch
from torch import Tensor

from dilocoxd.config.hugging_face import canonical_config, parse_config, sizes
from dilocoxd.errors import ConfigError
from dilocoxd.models.config import CONFIG_KIND, ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.hf_cut import CutStage, config_object, new_model

_LAYERS_MAX: Final = 4
_POSITIONS: Final = 32
_VOCAB: Final = 64
_SMALL: Final = {
    "head_dim": 8, "sliding_window": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2,
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "max_position_embeddings": _POSITIONS, "n_positions": _POSITIONS, "n_ctx": _POSITIONS, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 0, "intermediate_size": 48, "n_inner": 48, "query_pre_attn_scalar": 8,
}  # fmt: skip
"""Sizes of the tiny model where the config has such a field; everything else stays as it is."""
_PER_LAYER: Final = ("layer_types", "mlp_layer_types", "no_rope_layers")


def check_cut(config: ModelConfig) -> None:
    """Raise ConfigError unless the chain of stages of a tiny model of this config equals the whole one to the bit."""
    table = tiny_table(parse_config(config.config))
    small = tiny_config(table)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = new_model(config_object(table)).eval()
        weights = {name: tensor + torch.randn_like(tensor) * 0.05 for name, tensor in whole.state_dict().items()}
        ids = torch.randint(0, _VOCAB, (2, _POSITIONS - 8))
    if whole.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights[embedding_name(whole)]
    whole.load_state_dict(weights)
    with torch.no_grad():
        expected = whole(input_ids=ids, use_cache=False).logits
        found = chained(small, weights, ids, embedding_name(whole))
    if not torch.equal(found, expected):
        worst = float((found - expected).abs().max())
        raise ConfigError(
            f"this {table['model_type']} cannot be cut into stages: a chain of stages of a tiny model of its config"
            f" differs from the whole model by {worst:.3g}; use another model"
        )


def chained(config: ModelConfig, weights: dict[str, Tensor], ids: Tensor, embedding: str) -> Tensor:
    """Logits of a chain of up to two stages with these weights, without gradients."""
    num_stages = min(2, config.num_layers)
    ends = [config.num_layers * (index + 1) // num_stages for index in range(num_stages)]
    hidden = ids
    for index, end in enumerate(ends):
        span = StageSpan(index, num_stages, ends[index - 1] if index else 0, end)
        stage = CutStage(config, span, torch.device("cpu")).eval()
        for name, param in stage.global_parameters():
            param.copy_(weights[name])
        borrowed = stage.borrowed_embedding()
        if borrowed is not None:
            borrowed.copy_(weights[embedding])
        hidden = stage(hidden)
    return hidden


def embedding_name(whole: Any) -> str:
    """Name of the input embedding in the state of a library's model."""
    weight = whole.get_input_embeddings().weight
    return str(next(name for name, param in whole.named_parameters() if param is weight))


def tiny_config(table: dict[str, Any]) -> ModelConfig:
    """The model of a tiny config.json."""
    found: dict[str, Any] = dict(sizes(table))
    return ModelConfig(kind=CONFIG_KIND, seq_len=_POSITIONS, config=canonical_config(table), **found)


def tiny_table(table: dict[str, Any]) -> dict[str, Any]:
    """The same config with small sizes: few narrow layers, the same kinds of layers, norms, positions and experts."""
    tiny: dict[str, Any] = json.loads(json.dumps(table))
    found = sizes(table)
    layers = min(_LAYERS_MAX, found["num_layers"])
    groups = found["num_heads"] // found["num_kv_heads"]
    changes = dict(_SMALL) | {
        "vocab_size": _VOCAB, "hidden_size": 32, "n_embd": 32, "num_hidden_layers": layers, "n_layer": layers,
        "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 4 if groups == 1 else 2,
    }  # fmt: skip
    for name, value in changes.items():
        if tiny.get(name) is not None:
            tiny[name] = value
    if tiny.get("head_dim") is not None and tiny.get("qk_rope_head_dim") is not None:
        tiny["head_dim"] = tiny["qk_rope_head_dim"]  # what transformers writes as head_dim of a deepseek_v3
    for name in _PER_LAYER:
        if isinstance(tiny.get(name), list):
            tiny[name] = tiny[name][:layers]
    for rope in (tiny.get("rope_scaling"), tiny.get("rope_parameters")):
        _shrink_rope(rope)
    return tiny


def _shrink_rope(rope: Any) -> None:
    """Factors per frequency (longrope) are as many as a tiny head has; tables per kind of layer hold such tables."""
    if not isinstance(rope, dict):
        return
    for name in ("short_factor", "long_factor"):
        if isinstance(rope.get(name), list):
            rope[name] = rope[name][:4]
    for inner in rope.values():
        _shrink_rope(inner)
