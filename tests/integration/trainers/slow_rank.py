"""A trainer rank on a slow device: each block of the last rank takes a while longer. The first one is as it is."""

import os
import time
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from dilocoxd.models.llama import Block
from dilocoxd.trainer import main as trainer

BLOCK_S: Final = 0.03
"""Many times what a block of the tests takes, on a busy machine too."""


def main() -> int:
    """Exit status of the rank."""

    def wait(module: nn.Module, _: tuple[Any, ...]) -> None:
        if isinstance(module, Block):
            time.sleep(BLOCK_S)

    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        register_module_forward_pre_hook(wait)
    return trainer.main()
