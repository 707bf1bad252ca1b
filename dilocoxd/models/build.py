"""Choose the family that builds a stage; transformers is imported only when a run asks for it."""

from __future__ import annotations

import torch

from dilocoxd.errors import ConfigError
from dilocoxd.models.config import CONFIG_KIND, EXTERNAL_KIND, NATIVE_KIND, OWN_KIND, ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.llama import NativeStage
from dilocoxd.models.stage import StageModule


def build_stage(config: ModelConfig, span: StageSpan, *, device: torch.device) -> StageModule:
    """Stage of ``span`` with uninitialised parameters on ``device``; raises ConfigError if the family cannot be cut."""
    if config.kind == NATIVE_KIND:
        return NativeStage(config, span, device)
    if config.kind == OWN_KIND:
        from dilocoxd.models.own import own_stage

        return own_stage(config, span, device)
    if config.kind == EXTERNAL_KIND:
        raise ConfigError("only the training loop that the run belongs to can build its model (model.kind = external)")
    # Costs seconds of import time: only runs with a transformers model pay it.
    if config.kind == CONFIG_KIND:
        from dilocoxd.models.hf_cut import CutStage

        return CutStage(config, span, device)
    from dilocoxd.models.hf import HfStage

    return HfStage(config, span, device)


def check_model(config: ModelConfig) -> None:
    """Raise ConfigError if the family cannot be cut into stages exactly; costs nothing for the native model."""
    if config.kind == CONFIG_KIND:
        from dilocoxd.models.hf_check import check_cut

        check_cut(config)
    elif config.kind == OWN_KIND:
        from dilocoxd.models.own import check_own

        check_own(config)
    elif config.kind not in (NATIVE_KIND, EXTERNAL_KIND):
        from dilocoxd.models.hf import check_family

        check_family(config)
