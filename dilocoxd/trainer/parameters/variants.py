"""Which kind of flat parameters the strategy of a run asks for."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from dilocoxd.outer.optimizers import OuterOptimizer
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.parameters.mixing import MixedParameters
from dilocoxd.trainer.parameters.overlay import EagerParameters
from dilocoxd.wire.layout import Layout


def flat_parameters(
    parameters: Iterable[tuple[str, nn.Parameter]],
    layout: Layout,
    eager_optimizer: OuterOptimizer | None,
    fragments: int,
    mix_alpha: float,
    *,
    is_writer: bool = True,
    writes_whole: bool = True,
) -> FlatParameters:
    """Those of delay = eager (with its optimizer), streaming (with fragments), or any other delay.

    ``is_writer``, ``writes_whole``: of what this process writes its part of the shared buffers (FlatParameters).
    """
    if eager_optimizer is not None:
        return EagerParameters(parameters, layout, eager_optimizer, is_writer=is_writer, writes_whole=writes_whole)
    if fragments:
        return MixedParameters(parameters, layout, fragments, mix_alpha, is_writer=is_writer, writes_whole=writes_whole)
    return FlatParameters(parameters, layout, is_writer=is_writer, writes_whole=writes_whole)
