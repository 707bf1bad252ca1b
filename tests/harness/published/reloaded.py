"""A published model by transformers, in memory as a model of our own is: for comparing logits to the bit."""

from pathlib import Path
from typing import Any

import torch


def reloaded(folder: Path) -> Any:
    """transformers' model of these files, in float32, for evaluation.

    Its weights are copied: read in place from a safetensors file they begin at any multiple of 8 bytes, ours at one of
    64, and small matrix products on a CPU round by that (seen with experts that get one token)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()
    return model
