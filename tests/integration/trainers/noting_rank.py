"""A trainer rank that notes what its first stage computes on: a line of token ids for each sequence, in this order."""

import os
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from dilocoxd.models import StageModule
from dilocoxd.trainer import main as trainer

FOLDER_VARIABLE: Final = "NOTES"


def main() -> int:
    """Exit status of the rank."""
    path = Path(os.environ[FOLDER_VARIABLE]) / f"{os.environ['RANK']}.read"

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        # Evaluation has no gradients, and what other stages get are activations.
        if not isinstance(module, StageModule) or not torch.is_grad_enabled() or not inputs:
            return
        ids: Tensor = inputs[0]
        if ids.dtype is torch.int64:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(" ".join(map(str, row)) + "\n" for row in ids.tolist())

    register_module_forward_pre_hook(note)
    return trainer.main()
