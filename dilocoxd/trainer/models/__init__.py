"""Decoder models cut into pipeline stages: what the parameters are called, how they start, how a stage runs."""

from dilocoxd.trainer.models.build import build_stage
from dilocoxd.trainer.models.config import ModelConfig
from dilocoxd.trainer.models.cut import StageSpan, cut_stages
from dilocoxd.trainer.models.genesis import init_parameter
from dilocoxd.trainer.models.params import param_specs
from dilocoxd.trainer.models.stage import StageModule

__all__ = [
    "ModelConfig",
    "StageModule",
    "StageSpan",
    "build_stage",
    "cut_stages",
    "init_parameter",
    "param_specs",
]
