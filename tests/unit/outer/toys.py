"""Toy problems with known histories for the single-process engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.wire.layout import CUT_MULTIPLE, Layout, ParamSpec, make_layout
from tests.reference.engine import Engine, Recipe
from tests.reference.phases import Delay, Phases, Train


def flat_layout(numel: int, segment_elements_max: int = CUT_MULTIPLE) -> Layout:
    return make_layout([ParamSpec("flat.weight", (numel,))], segment_elements_max)


def nesterov(lr: float, momentum: float) -> OuterOptimizer:
    return outer_from_name("nesterov", lr, momentum)


def engine(
    anchor: Tensor,
    sites: Sequence[str],
    optimizer: OuterOptimizer,
    codec: Codec | None = None,
    feedback: ErrorFeedback | None = None,
    transform: Transform | None = None,
) -> Engine:
    if transform is None:
        transform = NoTransform(flat_layout(anchor.numel()), codec or codec_from_name("fp32"))
    return Engine.start(Recipe(transform, optimizer, feedback or ErrorFeedback()), anchor, sites)


def halve(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
    """Each inner step halves theta: with one step per phase u = x / 2."""
    for _ in range(num_steps):
        theta.mul_(0.5)


def phase_starts(
    optimizer: OuterOptimizer, delay: Delay, num_sites: int, count: int, train: Train = halve
) -> list[float]:
    """Where site a's phases start, for the scalar x_0 = 1 and one inner step per phase."""
    sites = [chr(ord("a") + index) for index in range(num_sites)]
    phases = Phases(engine(torch.ones(1), sites, optimizer), train, delay)
    starts = [float(phases.sites["a"].theta)]
    while len(starts) < count:
        phases.run_phase(1)
        starts.append(float(phases.sites["a"].theta))
    return starts
