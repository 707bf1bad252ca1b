"""A block that was computed says so, forwards and backwards, and the numbers stay what they were."""

import torch
from torch import nn

from dilocoxd.models import ModelConfig, StageSpan, build_stage
from dilocoxd.trainer.pulse import INTERVAL_S, Pulse

CONFIG = ModelConfig("native", 64, 16, 3, 2, 2, 32, 8)


class Clock:
    """Each look at it is so much later."""

    def __init__(self, step_s: float) -> None:
        self.now = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def gradients(pulse: Pulse | None) -> list[torch.Tensor]:
    torch.manual_seed(1)
    stage = build_stage(CONFIG, StageSpan(0, 1, 0, 3), device=torch.device("cpu"))
    with torch.no_grad():
        for _, param in stage.global_parameters():
            param.copy_(torch.randn(param.shape) / 8)
    if pulse is not None:
        pulse.listen_to([stage])
    stage(torch.arange(8).view(1, 8)).square().mean().backward()
    return [param.grad for _, param in stage.global_parameters() if param.grad is not None]


def test_a_step_beats_for_each_block_both_ways_and_changes_nothing() -> None:
    beats: list[None] = []
    plain = gradients(None)
    watched = gradients(Pulse(lambda: beats.append(None), Clock(INTERVAL_S)))
    assert len(beats) == 2 * (CONFIG.num_layers + 1), "three blocks and the whole, forwards and backwards"
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


def test_a_fast_step_is_not_talkative() -> None:
    beats: list[None] = []
    gradients(Pulse(lambda: beats.append(None), Clock(INTERVAL_S / 100)))
    assert not beats


def test_blocks_that_return_tuples_and_evaluations_beat_too() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return x * 2, None

    beats: list[None] = []
    pair = Pair()
    Pulse(lambda: beats.append(None), Clock(INTERVAL_S)).listen_to([pair])
    with torch.no_grad():
        pair(torch.ones(2))
    assert len(beats) == 1
    pair(torch.ones(2, requires_grad=True))[0].sum().backward()
    assert len(beats) == 3
