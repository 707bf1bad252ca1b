"""Which kind of flat parameters the strategy of a run asks for."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from dilocoxd.outer.optimizers import OuterOptimizer
from dilocoxd.trainer.parallel.mesh import ALONE, MeshPlace
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
    place: MeshPlace = ALONE,
) -> FlatParameters:
    """Those of delay = eager (with its optimizer), streaming (with fragments), or any other delay.

    ``place``: of this process among those of the site.
    """
    if eager_optimizer is not None:
        return EagerParameters(parameters, layout, eager_optimizer, place=place)
    if fragments:
        return MixedParameters(parameters, layout, fragments, mix_alpha, place=place)
    return FlatParameters(parameters, layout, place=place)
