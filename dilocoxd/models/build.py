"""Choose the family that builds a stage; transformers is imported only when a run asks for it."""

from __future__ import annotations

import torch

from dilocoxd.models.config import NATIVE_KIND, ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.llama import NativeStage
from dilocoxd.models.stage import StageModule


def build_stage(config: ModelConfig, span: StageSpan, *, device: torch.device) -> StageModule:
    """Stage of ``span`` with uninitialised parameters on ``device``; raises ConfigError if the family cannot be cut."""
    if config.kind == NATIVE_KIND:
        return NativeStage(config, span, device)
    # Costs seconds of import time: only runs with a transformers model pay it.
    from dilocoxd.models.hf import HfStage

    return HfStage(config, span, device)


def check_model(config: ModelConfig) -> None:
    """Raise ConfigError if the family cannot be cut into stages exactly; costs nothing for the native model."""
    if config.kind != NATIVE_KIND:
        from dilocoxd.models.hf import check_family

        check_family(config)
