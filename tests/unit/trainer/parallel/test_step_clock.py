"""What of an inner step is a rank's own work, by a clock that only moves where the test says so."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B

from dilocoxd.trainer.parallel.step_clock import StepClock
from dilocoxd.trainer.parallel.timed_stage import TimedStage

FORWARD_S, BACKWARD_S, LOSS_S = 2.0, 5.0, 100.0
PARTS = 3


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """Takes FORWARD_S to compute, and BACKWARD_S for the gradient."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self._time = time

    def forward(self, x: Tensor) -> Tensor:
        self._time.now += FORWARD_S
        out = x * self.weight
        out.register_hook(self._spend)
        return out

    def _spend(self, gradient: Tensor) -> None:
        self._time.now += BACKWARD_S


def test_ranks_that_compute_half_of_a_step_wait_the_other_half() -> None:
    time = Time()
    clock = StepClock(torch.device("cpu"), time)
    for _ in range(2):  # the second step counts nothing of the first
        time.now += 50.0
        clock.begin()
        time.now += 1.0
        with clock.computing():
            time.now += 3.0
        time.now += 2.0
        with clock.computing():
            time.now += 1.0
        assert clock.read() == 4.0
        time.now += 3.0
        assert clock.waited(5.0) == 0.5, "mean over all ranks, of 10 s from the begin to the end"
        assert clock.waited(11.0) == 0.0, "clocks of other ranks are not ours"


def test_work_of_a_stage_is_its_forward_and_backward_and_no_more() -> None:
    time = Time()
    clock = StepClock(torch.device("cpu"), time)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        time.now += LOSS_S  # of the schedule: whoever makes it says whether that counts
        return (output - target).sum()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        part = torch.zeros(1, 4, device="meta")
        output = torch.empty(1, 4, device="meta", requires_grad=True)
        stage = TimedStage(
            clock, Slow(time), 0, 1, torch.device("cpu"), input_args=(part,), output_args=(output,)
        )  # fmt: skip
        schedule = Schedule1F1B(stage, PARTS, loss_fn=loss)
        clock.begin()
        schedule.step(torch.ones(PARTS, 4), target=torch.ones(PARTS, 4), losses=[], return_outputs=False)
    finally:
        dist.destroy_process_group()
    assert clock.read() == pytest.approx(PARTS * (FORWARD_S + BACKWARD_S))
