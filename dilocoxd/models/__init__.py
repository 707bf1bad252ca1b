"""Decoder models cut into pipeline stages: what the parameters are called, how they start, how a stage runs."""

from dilocoxd.models.build import build_stage
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import StageSpan, cut_stages
from dilocoxd.models.genesis import init_of_model, init_parameter, init_std
from dilocoxd.models.params import param_specs
from dilocoxd.models.stage import StageModule

__all__ = [
    "ModelConfig",
    "StageModule",
    "StageSpan",
    "build_stage",
    "cut_stages",
    "init_of_model",
    "init_parameter",
    "init_std",
    "param_specs",
]
