"""Tiny models of every family that a run can have, as config.json would describe them."""

from typing import Any

_BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 2, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
_OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama": ("llama", {"rope_theta": 500000.0}),
    "qwen2": ("qwen2", {}),
    "qwen3 wide heads": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "mistral window": ("mistral", {"sliding_window": 8, "head_dim": 8}),
    "mistral no window": ("mistral", {"sliding_window": None}),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "smollm3": ("smollm3", {"pad_token_id": 0, "tie_word_embeddings": True}),
    "gemma3_text": ("gemma3_text", {"head_dim": 8, "tie_word_embeddings": True, "sliding_window": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
    ),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}),
    "deepseek_v3": ("deepseek_v3", _DEEPSEEK),
    "gpt_neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "tie_word_embeddings": True}),
}


def _table(model_type: str, own: dict[str, Any]) -> dict[str, Any]:
    if model_type == "gpt2":
        return {"model_type": model_type, "vocab_size": 96} | own
    return {"model_type": model_type} | _BASE | own


FAMILY_CONFIGS: dict[str, dict[str, Any]] = {label: _table(*each) for label, each in _OWN.items()}
