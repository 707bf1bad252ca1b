"""Choose the family that builds a stage; transformers is imported only when a run asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from dilocoxd.errors import ConfigError
from dilocoxd.models.bounds import LibraryBounds
from dilocoxd.models.config import CONFIG_KIND, EXTERNAL_KIND, NATIVE_KIND, OWN_KIND, ModelConfig
from dilocoxd.models.cut import StageSpan
from dilocoxd.models.llama import NativeStage
from dilocoxd.models.stage import StageModule
from dilocoxd.store.installed_models import require_library

DIFFERENCE_MAX: Final = 1e-4
"""Between logits of a document alone and beside another, of a tiny model whose logits are about 1: float32 sums in
another order differ by 1e-6, a document that is seen, or positions that go on, by 0.1."""
_LENGTHS: Final = (11, 13)
"""Longer than the window of tiny models with sliding windows."""


def build_stage(config: ModelConfig, span: StageSpan, *, device: torch.device) -> StageModule:
    """Stage of ``span`` with uninitialised parameters on ``device``; raises ConfigError if the family cannot be cut."""
    if config.kind == NATIVE_KIND:
        return NativeStage(config, span, device)
    if config.kind == OWN_KIND:
        from dilocoxd.models.own import own_stage

        return own_stage(config, span, device)
    if config.kind == EXTERNAL_KIND:
        raise ConfigError(
            "model.kind = external: only the training loop of the run can build its model; load the weights there"
        )
    require_library(config.kind)
    # Costs seconds of import time: only runs with a transformers model pay it.
    if config.kind == CONFIG_KIND:
        from dilocoxd.models.hf_cut import CutStage

        return CutStage(config, span, device)
    from dilocoxd.models.hf import HfStage

    return HfStage(config, span, device)


def check_model(config: ModelConfig, *, keeps_documents_apart: bool = False) -> None:
    """Raise ConfigError if the family cannot be cut into stages exactly; costs nothing for the native model.

    With `keeps_documents_apart` also if it cannot do that (data.document_mask).
    """
    require_library(config.kind)
    if config.kind == CONFIG_KIND:
        from dilocoxd.models.hf_check import check_cut

        with LibraryBounds(_family(config)):
            check_cut(config)
    elif config.kind == OWN_KIND:
        from dilocoxd.models.own import check_own

        check_own(config)
    elif config.kind not in (NATIVE_KIND, EXTERNAL_KIND):
        from dilocoxd.models.hf import check_family

        with LibraryBounds(config.kind):
            check_family(config)
    if keeps_documents_apart and config.kind != EXTERNAL_KIND:
        check_documents(config)


def check_documents(config: ModelConfig) -> None:
    """Raise ConfigError unless a document beside another one has the logits that it has alone, in a tiny model."""
    small = replace(_tiny(config), adapter=None)
    whole = build_stage(small, StageSpan(0, 1, 0, small.num_layers), device=torch.device("cpu")).eval()
    what = config.entry_point or config.kind
    if not whole.takes_positions:
        raise ConfigError(
            f"data.document_mask = true, but the model {what!r} takes no positions, so documents cannot be kept apart;"
            " set it to false"
        )
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in whole.global_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.1 + (parameter.dim() == 1))
        parts = [torch.randint(0, small.vocab_size, (2, length), generator=random) for length in _LENGTHS]
        positions = torch.cat([torch.arange(length) for length in _LENGTHS]).expand(2, -1)
        together = whole(torch.cat(parts, dim=1), positions)
        alone = torch.cat([whole(part, torch.arange(part.shape[1]).expand(2, -1)) for part in parts], dim=1)
    worst = float((together - alone).abs().max() / alone.abs().max())
    if not worst <= DIFFERENCE_MAX:
        raise ConfigError(
            f"data.document_mask = true, but this library's {_family(config)} does not keep documents apart: logits"
            f" differ by {worst:.3g} of the largest; set it to false, or use another model"
        )


def _tiny(config: ModelConfig) -> ModelConfig:
    if config.kind != CONFIG_KIND:
        from dilocoxd.models.own import tiny

        return replace(tiny(config), seq_len=sum(_LENGTHS))
    from dilocoxd.config.hugging_face import parse_config
    from dilocoxd.models.hf_check import tiny_config, tiny_table

    return tiny_config(tiny_table(parse_config(config.config)))


def _family(config: ModelConfig) -> str:
    if config.kind != CONFIG_KIND:
        return config.entry_point or config.kind
    from dilocoxd.config.hugging_face import parse_config

    return str(parse_config(config.config)["model_type"])
