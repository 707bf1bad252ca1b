"""config.json and generation_config.json of a run's model, as transformers reads them; needs no transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dilocoxd.config.hugging_face import parse_config
from dilocoxd.config.training import ModelSection
from dilocoxd.errors import ConfigError

LLAMA_SHAPED: Final = {
    "native": ("llama", "LlamaForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "mistral": ("mistral", "MistralForCausalLM"),
}
"""model.kind to (model_type, architecture); the native model is LLaMA under transformers' names."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of tokens that end, begin or pad a text; None: the tokenizer has none."""

    eos: int | None = None
    bos: int | None = None
    pad: int | None = None

    def fields(self) -> dict[str, int | None]:
        """As config.json names them. Always all three: the families' defaults are tokens of other tokenizers."""
        return {"bos_token_id": self.bos, "eos_token_id": self.eos, "pad_token_id": self.pad}


def config_json(model: ModelSection, special: SpecialTokens, dtype: str) -> dict[str, Any]:
    """The table of config.json. `dtype` is that of the exported weights."""
    kinds = {"dtype": dtype, "torch_dtype": dtype}
    if model.kind == "hf":
        return parse_config(model.config) | kinds
    if model.kind == "python":
        return own_table(model) | special.fields() | kinds
    return llama_shaped(model) | special.fields() | kinds


def own_table(model: ModelSection) -> dict[str, Any]:
    """Of an own model, which transformers does not know: whose it is, and its sizes."""
    left_out = ("kind", "config", "extra", "entry_point", "entry_sha256")
    sizes = {name: value for name, value in model.model_dump().items() if name not in left_out}
    return {"model_type": model.entry_point, "dilocoxd_models_sha256": model.entry_sha256} | sizes


def llama_shaped(model: ModelSection) -> dict[str, Any]:
    """Of a model whose manifest has the sizes one by one. Raises ConfigError for a module of somebody's own."""
    if model.kind not in LLAMA_SHAPED:
        raise ConfigError(
            f"a model of model.kind = {model.kind!r} has no config.json; load snapshots/N/anchor.safetensors into your"
            " own module"
        )
    model_type, architecture = LLAMA_SHAPED[model.kind]
    table: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.hidden_size // model.num_heads,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.seq_len,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "initializer_range": model.init_std,
        "use_cache": True,
    }
    return table | model.extra


def generation_json(special: SpecialTokens) -> dict[str, Any]:
    """The table of generation_config.json: what `dilocoxd generate` does, for other tools."""
    known = {name: value for name, value in special.fields().items() if value is not None}
    return {"do_sample": True, "temperature": 0.7, "top_k": 40} | known
