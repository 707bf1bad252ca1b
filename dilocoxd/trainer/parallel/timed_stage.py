"""A stage of torch's schedules whose work is timed. Apart: it imports a second of CPU time, for pipelines alone."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import PipelineStage

from dilocoxd.trainer.parallel.step_clock import StepClock


class TimedStage(PipelineStage):
    """Forward and backward of each microbatch count as computing, with what the ranks of a stage tell each other
    meanwhile; receiving its input from another stage and sending to the next do not."""

    def __init__(self, clock: StepClock, *args: Any, **more: Any) -> None:
        """`args`, `more`: see torch."""
        super().__init__(*args, **more)
        self._clock = clock

    def forward_one_chunk(self, *args: Any, **more: Any) -> Any:
        """See torch."""
        with self._clock.computing():
            return super().forward_one_chunk(*args, **more)

    def forward_maybe_with_nosync(self, *args: Any, **more: Any) -> Any:
        """See torch."""
        output: Any = super().forward_maybe_with_nosync(*args, **more)  # type: ignore[no-untyped-call]
        # A backward pass in two parts detaches it in place, which torch refuses for views (GPT-2 returns one).
        return output.clone() if output._is_view() else output

    def backward_one_chunk(self, *args: Any, **more: Any) -> Any:
        """See torch."""
        with self._clock.computing():
            return super().backward_one_chunk(*args, **more)

    def backward_weight_one_chunk(self, *args: Any, **more: Any) -> Any:
        """See torch."""
        with self._clock.computing():
            return super().backward_weight_one_chunk(*args, **more)

    def perform_reduce_grad(self, *args: Any, **more: Any) -> Any:
        """See torch."""
        with self._clock.computing():
            return super().perform_reduce_grad(*args, **more)
