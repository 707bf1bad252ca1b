"""What of a Hugging Face config.json a run needs to know before any library reads it: family, sizes, refusals."""

from __future__ import annotations

import functools
import json
from typing import Any, Final

CONFIG_CHARACTERS_MAX: Final = 200_000

FAMILIES: Final = (
    *("llama", "qwen2", "qwen3", "mistral", "olmo2", "phi3", "smollm3", "gemma3_text"),
    *("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "gpt_neox", "gpt2"),
)
"""model_type of families whose chain of stages equals the whole model to the bit; checked again at each start."""

LABELS_MAX: Final = 1000
"""transformers makes two tables with a line for each: a thousand million of them take all memory."""
_SIZES: Final = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_layers": ("num_hidden_layers", "n_layer"),
    "num_heads": ("num_attention_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads", "num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "n_inner"),
}
"""Field of the model section to names in config.json, the first that is there counts."""
_TIED: Final = ("gemma3_text", "gpt2", "smollm3")
"""Of `FAMILIES` those whose head is their embedding where config.json says nothing."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_POSITIONS: Final = ("max_position_embeddings", "n_positions")
_LEFT_OUT: Final = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")
"""Say nothing of the model."""
_REFUSED: Final = {
    "quantization_config": "the weights are quantised, and quantised weights cannot be trained; use the original model",
    "auto_map": "the model needs Python code from its files, and dilocoxd runs no such code; use a family it knows",
}


def canonical_config(table: dict[str, Any]) -> str:
    """The text for model.config. Raises ValueError with what to do for a model that no run can have."""
    for name, why in _REFUSED.items():
        if table.get(name):
            raise ValueError(f"config.json has {name}: {why}")
    labels = table.get("num_labels", 0)
    if not isinstance(labels, int) or labels > LABELS_MAX:
        raise ValueError(f"config.json has num_labels = {labels!r}, which means nothing to a language model; remove it")
    model_type = table.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type {model_type!r} of config.json is not supported: choose one of {', '.join(FAMILIES)}"
        )
    kept = {name: value for name, value in table.items() if name not in _LEFT_OUT}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if len(text) > CONFIG_CHARACTERS_MAX:
        raise ValueError(f"config.json has {len(text)} characters, at most {CONFIG_CHARACTERS_MAX}; shorten it")
    return text


def parse_config(text: str) -> dict[str, Any]:
    """The table in model.config. Raises ValueError unless it is canonical, so that equal models have one text."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"model.config is not JSON ({error}); let `dilocoxd start --config` write it") from error
    if not isinstance(table, dict) or canonical_config(table) != text:
        raise ValueError("model.config is not in canonical form; let `dilocoxd start --config` write it")
    return table


def sizes(table: dict[str, Any]) -> dict[str, int]:
    """vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, intermediate_size. Raises ValueError."""
    found: dict[str, int] = {}
    for name, keys in _SIZES.items():
        value = next((table[key] for key in keys if table.get(key) is not None), None)
        if value is None and name == "intermediate_size" and "hidden_size" in found:
            value = 4 * found["hidden_size"]
        if type(value) is not int or value < 1:
            raise ValueError(
                f"config.json has no usable {' or '.join(keys)} ({value!r}); use the config of a whole model"
            )
        found[name] = value
    return found


def has_tied_head(table: dict[str, Any]) -> bool:
    """Whether the head is the embedding: one parameter."""
    return bool(table.get("tie_word_embeddings", table.get("model_type") in _TIED))


@functools.lru_cache(maxsize=4)
def idle_parameters(text: str) -> int:
    """Weights of experts that a token does not pass through, of a model.config; 0 if it has or says none of that."""
    table, found = parse_config(text), sizes(parse_config(text))
    num = next((table[name] for name in _EXPERTS if table.get(name)), None)
    used, width = table.get("num_experts_per_tok"), table.get("moe_intermediate_size") or found["intermediate_size"]
    if not (type(num) is int and type(used) is int and type(width) is int):
        return 0
    dense = table.get("first_k_dense_replace")  # deepseek_v3 begins with layers that have none
    layers = found["num_layers"] - (dense if type(dense) is int else 0)
    return max(0, layers) * max(0, num - used) * 3 * found["hidden_size"] * width


def positions(table: dict[str, Any]) -> int:
    """Longest sequence that the model knows; 0 if the config does not say."""
    return next((table[key] for key in _POSITIONS if type(table.get(key)) is int), 0)
