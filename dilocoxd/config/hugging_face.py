"""What of a Hugging Face config.json a run needs to know before any library reads it: family, sizes, refusals."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, Final

CONFIG_CHARACTERS_MAX: Final = 200_000

FAMILIES: Final = (
    *("llama", "qwen2", "qwen3", "mistral", "olmo2", "phi3", "smollm3", "gemma3_text"),
    *("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "gpt_neox", "gpt2"),
)
"""model_type of families whose chain of stages equals the whole model to the bit; checked again at each start."""

NUMBER_MAX: Final = 1 << 53
"""What a float holds exactly; larger numbers overflow somewhere in a library."""
DEPTH_MAX: Final = 8
"""Tables and lists in each other; those of known models are three deep, and a library copies them by recursion."""
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
    "attribute_map": "the library would read other sizes than those that stand there; remove it",
}
_SHOWN_MAX: Final = 80


def canonical_config(table: dict[str, Any]) -> str:
    """The text for model.config. Raises ValueError with what to do for a model that no run can have."""
    _require_plain(table)
    for name, why in _REFUSED.items():
        if table.get(name):
            raise ValueError(f"config.json has {name}: {why}")
    labels = table.get("num_labels", 0)
    if not isinstance(labels, int) or labels > LABELS_MAX:
        raise ValueError(
            f"config.json has num_labels = {_shown(labels)}, which means nothing to a language model; remove it"
        )
    model_type = table.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type {_shown(model_type)} of config.json is not supported: choose one of {', '.join(FAMILIES)}"
        )
    kept = {name: value for name, value in table.items() if name not in _LEFT_OUT}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if len(text) > CONFIG_CHARACTERS_MAX:
        raise ValueError(f"config.json has {len(text)} characters, at most {CONFIG_CHARACTERS_MAX}; shorten it")
    return text


def _require_plain(table: Mapping[str, Any]) -> None:
    """Raise ValueError for values that no model has, and that a library turns into all memory or a traceback."""
    left = [(_shown(name), value, 1) for name, value in table.items()]
    while left:
        name, value, depth = left.pop()
        if isinstance(value, dict | list):
            if depth > DEPTH_MAX:
                raise ValueError(f"config.json has {name} with more than {DEPTH_MAX} tables in each other; remove it")
            inner = value.values() if isinstance(value, dict) else value
            left += [(name, one, depth + 1) for one in inner]
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"config.json has {name} = {value}, which is no finite number; give one")
        elif isinstance(value, int) and abs(value) > NUMBER_MAX:
            raise ValueError(f"config.json has {name} = {_shown(value)}, which no model has; give a smaller number")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


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
                f"config.json has no usable {' or '.join(keys)} ({_shown(value)}); use the config of a whole model"
            )
        found[name] = value
    return found


def has_tied_head(table: dict[str, Any]) -> bool:
    """Whether the head is the embedding: one parameter."""
    return bool(table.get("tie_word_embeddings", table.get("model_type") in _TIED))


@functools.lru_cache(maxsize=4)
def idle_parameters(text: str) -> int:
    """Weights of experts that a token does not pass through, of a model.config; 0 if it has or says none of that."""
    table = parse_config(text)
    used = table.get("num_experts_per_tok")
    num, width, per_width = _experts(table)
    return max(0, num - used) * width * per_width if num and type(used) is int else 0


@functools.lru_cache(maxsize=4)
def expert_parameters(text: str) -> int:
    """Of all experts of a model.config, in place of the dense part that `intermediate_size` says; 0 without experts."""
    table = parse_config(text)
    shared = table.get("n_shared_experts") or 0
    num, width, per_width = _experts(table)
    if not num or type(shared) is not int:
        return 0
    return max(0, (num + shared) * width - sizes(table)["intermediate_size"]) * per_width


def _experts(table: dict[str, Any]) -> tuple[int, int, int]:
    """Experts of a layer, width of each, and weights of the whole model for one of that width; zeros if it has or says
    none of that."""
    found = sizes(table)
    num = next((table[name] for name in _EXPERTS if table.get(name)), None)
    width = table.get("moe_intermediate_size") or found["intermediate_size"]
    if not (type(num) is int and type(width) is int):
        return 0, 0, 0
    dense = table.get("first_k_dense_replace")  # deepseek_v3 begins with layers that have none
    layers = found["num_layers"] - (dense if type(dense) is int else 0)
    return num, width, max(0, layers) * 3 * found["hidden_size"]


def positions(table: dict[str, Any]) -> int:
    """Longest sequence that the model knows; 0 if the config does not say."""
    return next((table[key] for key in _POSITIONS if type(table.get(key)) is int), 0)
