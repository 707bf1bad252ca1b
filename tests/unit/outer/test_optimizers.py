"""Outer optimizers: torch's own as reference, slices independent, thresholds of ALGORITHMS 5.3."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.codec import CHUNK
from dilocoxd.errors import ConfigError
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name, zero_slots
from tests.reference.stability import arrival_limit, delayed_limit, eager_limit, stability_warning, sync_limit

SAME_FORMULA_TOLERANCE = 2e-6
"""torch fuses multiply-add and we must not: a few roundings of fp32 apart over ten steps."""


def run(optimizer: OuterOptimizer, x: Tensor, gradients: list[Tensor]) -> Tensor:
    slots = zero_slots(optimizer, x.numel())
    for step, gradient in enumerate(gradients):
        optimizer.step_(x, slots, gradient, step)
    return x


@pytest.mark.parametrize("name", ["sgd", "heavy_ball", "nesterov", "adam"])
def test_agrees_with_torch(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    gradients = [torch.randn(5000, generator=generator) for _ in range(10)]
    x = torch.randn(5000, generator=generator)
    reference = torch.nn.Parameter(x.clone())
    momentum = 0.0 if name == "sgd" else 0.9
    if name == "adam":
        theirs: torch.optim.Optimizer = torch.optim.Adam([reference], lr=0.01, betas=(0.9, 0.95), eps=1e-8)
        ours = outer_from_name(name, 0.01, momentum, beta2=0.95)
    else:
        theirs = torch.optim.SGD([reference], lr=0.7, momentum=momentum, nesterov=name == "nesterov")
        ours = outer_from_name(name, 0.7, momentum)
    for gradient in gradients:
        reference.grad = gradient.clone()
        theirs.step()
    torch.testing.assert_close(run(ours, x, gradients), reference.detach(), rtol=1e-5, atol=SAME_FORMULA_TOLERANCE * 10)


@pytest.mark.parametrize("name", ["sgd", "heavy_ball", "nesterov", "adam"])
def test_slices_give_the_same_bits_as_the_whole(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    numel = CHUNK + 5000
    gradients = [torch.randn(numel, generator=generator) for _ in range(3)]
    start = torch.randn(numel, generator=generator)
    optimizer = outer_from_name(name, 0.5, 0.0 if name == "sgd" else 0.9)
    whole = run(optimizer, start.clone(), gradients)
    cut = 4096 * 7
    parts = [run(optimizer, start[a:b].clone(), [g[a:b] for g in gradients]) for a, b in ((0, cut), (cut, numel))]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(gradients[0][:3], gradients[0].clone()[:3])


def test_thresholds_match_the_closed_forms() -> None:
    assert [round(sync_limit(b), 3) for b in (0, 0.5, 0.8, 0.9)] == [2.0, 1.5, 1.385, 1.357]
    assert [round(delayed_limit(b), 4) for b in (0, 0.5, 0.8, 0.9)] == [1.0, 0.5616, 0.3445, 0.2531]
    assert eager_limit(0.9, 1) == pytest.approx(sync_limit(0.9), rel=1e-6)
    assert eager_limit(0.9, 2) == pytest.approx(0.765, rel=0.01)
    assert eager_limit(0.9, 4) == pytest.approx(0.415, rel=0.01)
    assert eager_limit(0.9, 10**6) == pytest.approx(delayed_limit(0.9), rel=1e-4)


def test_merge_on_arrival_is_nearly_as_stable_as_waiting() -> None:
    assert arrival_limit(0.8, 0.0) == pytest.approx(sync_limit(0.8), rel=0.01)
    assert arrival_limit(0.8, 0.2) == pytest.approx(sync_limit(0.8), rel=0.02)
    assert arrival_limit(0.8, 1.0) == pytest.approx(1.16, rel=0.02)
    assert arrival_limit(0.9, 1.0) > 4 * delayed_limit(0.9)


def test_warning_names_limit_and_remedy_only_beyond_it() -> None:
    assert stability_warning("nesterov", 0.7, 0.9, "none") is None
    assert stability_warning("nesterov", 0.2, 0.9, "phase") is None
    text = stability_warning("nesterov", 0.7, 0.9, "phase")
    assert text is not None
    assert "0.253" in text
    assert "at most 0.227" in text


@pytest.mark.parametrize(
    ("name", "lr", "momentum", "words"),
    [
        ("lion", 0.1, 0.9, "unknown"),
        ("sgd", 0.1, 0.9, "sgd has none"),
        ("nesterov", 0.0, 0.9, "lr is"),
        ("nesterov", float("nan"), 0.9, "lr is"),
        ("nesterov", 0.5, 1.0, "momentum is"),
    ],
)
def test_bad_settings_are_config_errors(name: str, lr: float, momentum: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        outer_from_name(name, lr, momentum)
