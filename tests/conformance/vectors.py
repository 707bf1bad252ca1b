"""Reads the golden vectors of protocol/vectors: the files, and the values in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VECTORS = Path(__file__).resolve().parents[2] / "protocol" / "vectors"


def loaded(name: str) -> Any:
    """The document called `name`."""
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def from_json(value: Any) -> Any:
    """A value as the generators wrote it: {"hex": ...} is bytes."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [from_json(item) for item in value] if isinstance(value, list) else value


def floats(text: str) -> Tensor:
    """float32 values from their bits in hex."""
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.float32)
