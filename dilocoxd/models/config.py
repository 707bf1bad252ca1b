"""The model of a run as the trainers see it: sizes, family and the few rules that make a config impossible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from dilocoxd.config.training import ModelSection
from dilocoxd.errors import ConfigError

NATIVE_KIND: Final = "native"

HF_MODEL_TYPES: Final = ("llama", "qwen2", "qwen3", "mistral")
"""transformers families whose stage chain equals the full model bit for bit (checked again at start-up)."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a LLaMA-shaped decoder. ``kind`` is "native" or one of HF_MODEL_TYPES.

    ``extra`` holds further fields of the transformers config (rope scaling, sliding window ...); native takes none.
    """

    kind: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    seq_len: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_section(cls, section: ModelSection) -> ModelConfig:
        """The model of a manifest's `model` section, which has the same fields."""
        return cls(**section.model_dump())

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes that no model can have."""
        if self.kind != NATIVE_KIND and self.kind not in HF_MODEL_TYPES:
            known = ", ".join((NATIVE_KIND, *HF_MODEL_TYPES))
            raise ConfigError(f"model.kind {self.kind!r} is not supported: choose one of {known}")
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "intermediate_size",
            "seq_len",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: it must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"model.hidden_size {self.hidden_size} is not a multiple of model.num_heads {self.num_heads}: "
                "change one of them"
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_heads {self.num_heads} is not a multiple of model.num_kv_heads {self.num_kv_heads}: "
                "change one of them"
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"model.hidden_size / model.num_heads is {self.head_dim}: rotary positions need an even head size"
            )
        if self.kind == NATIVE_KIND and self.extra:
            raise ConfigError(f"model.extra {sorted(self.extra)} means nothing to the native model: remove it")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads
