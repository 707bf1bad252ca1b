"""An adapter as the directory that `peft` loads: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dilocoxd.config.hugging_face import parse_config
from dilocoxd.config.manifest import Manifest
from dilocoxd.store.tensor_header import TensorEntry
from dilocoxd.trained.anchor import AnchorFile
from dilocoxd.trained.numbers import NumberFormat
from dilocoxd.trained.shards import Shard, write_shard

ADAPTER_NAME: Final = "adapter_model.safetensors"
ADAPTER_CONFIG_NAME: Final = "adapter_config.json"
_PREFIX: Final = "base_model.model."
"""peft's own wrapping around a model of transformers."""
_NARROW: Final = ".lora_A.weight"
_CONV1D: Final = ("gpt2",)
"""Families whose layers keep their weights the other way round."""


def adapter_config(manifest: Manifest, names: list[str]) -> dict[str, Any]:
    """The table of adapter_config.json; `names` are those of the adapter's parameters."""
    lora = manifest.lora
    targets = sorted({name.removesuffix(_NARROW).rpartition(".")[2] for name in names if name.endswith(_NARROW)})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": lora.base_name,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": parse_config(manifest.model.config)["model_type"] in _CONV1D,
        "inference_mode": True,
    }


def write_adapter_weights(anchor: AnchorFile, folder: Path, number_format: NumberFormat) -> str:
    """Write the parameters under peft's names; the file's name. Raises StoreError, ConfigError."""
    entries = tuple(TensorEntry(_PREFIX + entry.name, entry.shape, number_format.tag) for entry in anchor.entries)
    write_shard(folder, Shard(ADAPTER_NAME, entries), anchor, number_format)
    return ADAPTER_NAME
