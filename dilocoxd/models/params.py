"""Names and shapes of all parameters in canonical order: embedding, layers, final norm, head.

Built on the meta device, so that a model of any size can be laid out without allocating it.
"""

from __future__ import annotations

import torch

from dilocoxd.config.sections.own_module import parse_shapes
from dilocoxd.models.bounds import LibraryBounds
from dilocoxd.models.build import build_stage
from dilocoxd.models.config import EXTERNAL_KIND, NATIVE_KIND, OWN_KIND, ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.wire.layout import ParamSpec


def param_specs(config: ModelConfig) -> list[ParamSpec]:
    """All parameters of the model in canonical order, as every site lays them out in the flat vector."""
    if config.kind == EXTERNAL_KIND:
        return [ParamSpec(name, shape) for name, shape in parse_shapes(config.config)]
    whole = StageSpan(stage_index=0, num_stages=1, first_layer=0, end_layer=config.num_layers)
    if config.kind in (NATIVE_KIND, OWN_KIND):
        stage = build_stage(config, whole, device=torch.device("meta"))
    else:
        with LibraryBounds(config.kind):
            stage = build_stage(config, whole, device=torch.device("meta"))
    return [ParamSpec(name, tuple(param.shape)) for name, param in stage.global_parameters()]
