"""The whole model in one process with the parameters of a flat vector: for evaluation and text without a pipeline."""

from __future__ import annotations

import torch
from torch import Tensor

from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage, param_specs
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.wire.layout import CUT_MULTIPLE, Layout, make_layout


def flat_layout(config: ModelConfig) -> Layout:
    """Where the parameters lie in a flat vector; segments do not matter here."""
    return make_layout(param_specs(config), CUT_MULTIPLE * 256)


def whole_model(config: ModelConfig, vector: Tensor) -> StageModule:
    """The model with the parameters of ``vector`` (float32 [numel], canonical order), in evaluation mode on the CPU.

    Raises ValueError if the vector belongs to another model.
    """
    layout = flat_layout(config)
    if vector.dtype != torch.float32 or vector.numel() != layout.numel:
        raise ValueError(f"the vector has {vector.numel()} {vector.dtype} elements, the model {layout.numel} float32")
    span = StageSpan(stage_index=0, num_stages=1, first_layer=0, end_layer=config.num_layers)
    module = build_stage(config, span, device=torch.device("cpu"))
    FlatParameters(module.global_parameters(), layout).load(vector)
    return module.eval()
