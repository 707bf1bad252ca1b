"""The model of a run as the trainers see it: sizes, family and the few rules that make a config impossible."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.training import ModelSection
from dilocoxd.errors import ConfigError

NATIVE_KIND: Final = "native"

CONFIG_KIND: Final = "hf"
"""The model is described by a Hugging Face config.json (models/hf_cut.py)."""

OWN_KIND: Final = "python"
"""An installed package brings the model (models/own.py)."""
EXTERNAL_KIND: Final = "external"
"""The model is somebody's own module, known by names and shapes alone (config/sections/own_module.py)."""

HF_MODEL_TYPES: Final = ("llama", "qwen2", "qwen3", "mistral")
"""transformers families whose stage chain equals the full model bit for bit (checked again at start-up)."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is trained in the place of the model: two narrow matrices in each linear layer of `targets`, or in all."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        """What the product of the two is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder. ``kind`` is "native", one of HF_MODEL_TYPES (LLaMA-shaped too), "hf" or "python".

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
    config: str = ""
    """config.json as text, for kind "hf"; the sizes above are its own. The table of parameters, for "external"."""
    entry_point: str = ""
    """Of a model of kind "python": its name in the group dilocoxd.models."""
    entry_sha256: str = ""
    """Of the file with its class, hex."""
    adapter: Adapter | None = None
    """With one, the model's own parameters are frozen, and its parameters are those of the adapter."""

    @classmethod
    def from_section(cls, section: ModelSection) -> ModelConfig:
        """The model of a manifest's `model` section, which has the same fields, without an adapter."""
        return cls(**section.model_dump())

    @classmethod
    def of_run(cls, manifest: Manifest) -> ModelConfig:
        """What a run trains: its model, or an adapter of it."""
        lora = manifest.lora
        adapter = Adapter(lora.rank, lora.alpha, lora.targets) if lora.rank else None
        return replace(cls.from_section(manifest.model), adapter=adapter)

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes that no model can have."""
        kinds = (NATIVE_KIND, *HF_MODEL_TYPES, CONFIG_KIND, OWN_KIND, EXTERNAL_KIND)
        if self.kind not in kinds:
            known = ", ".join(kinds)
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
        if self.kind == CONFIG_KIND:
            return  # config/training.py has compared them with the config
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
                f"model.hidden_size / model.num_heads is {self.head_dim}: rotary positions need an even head size;"
                " change one of them"
            )
        if self.kind in (NATIVE_KIND, OWN_KIND) and self.extra:
            raise ConfigError(f"model.extra {sorted(self.extra)} means nothing to the {self.kind} model: remove it")

    @property
    def zero_centred_norms(self) -> bool:
        """Norm weights are added to 1, so that they start at 0 (Gemma)."""
        return self.kind == CONFIG_KIND and str(json.loads(self.config)["model_type"]).startswith("gemma")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads
