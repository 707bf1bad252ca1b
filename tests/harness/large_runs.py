"""Runs of 1B to 107B parameters, as manifests: nothing of their size is allocated."""

from typing import Any

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables

SIZES = {
    "1B": (2048, 16, 32, 8, 8192, 128256),
    "7B": (4096, 32, 32, 8, 14336, 32000),
    "70B": (8192, 80, 64, 8, 28672, 128256),
    "107B": (8192, 78, 64, 64, 49152, 152064),
}
"""hidden_size, num_layers, num_heads, num_kv_heads, intermediate_size, vocab_size."""
NAMES = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "intermediate_size", "vocab_size")


def run_of(size: str, lowrank_r: int = 0, **strategy: Any) -> Manifest:
    """Of the model of this size; H = 125 and one step of delay, as the paper trains its largest."""
    tables = preset_tables("small")
    tables["model"] = {**dict(zip(NAMES, SIZES[size], strict=True)), "seq_len": 4096}
    tables["strategy"] = {"name": "paper", "delay": "phase", "codec": "int4", "inner_steps": 125, **strategy}
    if lowrank_r:
        tables["strategy"] |= {"transform": "lowrank", "lowrank_r": lowrank_r}
    return manifest_from_tables(tables, source=size)
