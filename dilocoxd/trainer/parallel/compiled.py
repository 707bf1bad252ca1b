"""Blocks compiled by torch.compile, one by one: alike blocks of a stage share their code, and all names stay.

Only passes with gradients: their shapes never change, while evaluations have several, and each would be compiled anew.
What comes out differs from uncompiled blocks by the order of sums inside fused loops (docs/cluster.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from dilocoxd.config.sections.compilers import missing_for_compiling
from dilocoxd.errors import ConfigError
from dilocoxd.models import StageModule

CODE_FOLDER: Final = "TORCHINDUCTOR_CACHE_DIR"
_VARIANTS_MAX: Final = 4
"""Of a block that is like no other: for its shapes, with and without a mask."""


def keep_code_in(folder: Path) -> None:
    """Compiled code is kept there and found again after a restart, unless the environment names a folder already."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # What has imported torch's pipelines has torch's own folder there, below /tmp: torch names it as soon as it looks.
    given = os.environ.get(CODE_FOLDER)
    if given is None or Path(given) == Path(default_cache_dir()).absolute():
        os.environ[CODE_FOLDER] = str(folder)


def compile_blocks(stage: StageModule, device: torch.device, backend: str = "inductor") -> None:
    """Blocks compile themselves in the first pass with gradients. Raises ConfigError if this machine cannot.

    `backend`: what torch.compile hands traced blocks to.
    """
    if missing := missing_for_compiling(device.type):
        raise ConfigError(f"{missing}; set it to false, or install what is missing")
    # Only here: torch._dynamo is a second of CPU time and 75 MB.
    import torch._dynamo.config as tracing
    import torch._inductor.config as generating

    blocks = list(stage.blocks())
    # Past the limit torch goes on uncompiled. Blocks that know their number count as different ones.
    tracing.recompile_limit = max(tracing.recompile_limit, _VARIANTS_MAX * len(blocks))
    generating.compile_threads = 1  # no pool of processes that nobody here knows of
    for block in blocks:
        inside: Any = block
        inside.forward = partial(
            _forward, torch.compile(inside.forward, dynamic=False, backend=backend), inside.forward
        )


def _forward(compiled: Callable[..., Any], plain: Callable[..., Any], *inputs: Any, **more: Any) -> Any:
    return (compiled if torch.is_grad_enabled() else plain)(*inputs, **more)
