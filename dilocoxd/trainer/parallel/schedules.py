"""torch's pipeline schedules. Apart: they import a second of CPU time, for pipelines alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

_OF_ONE_STAGE: dict[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
_OF_SEVERAL: dict[str, Any] = {
    "interleaved1f1b": ScheduleInterleaved1F1B,
    "interleavedzerobubble": ScheduleInterleavedZeroBubble,
    "zbvzerobubble": ScheduleZBVZeroBubble,
}


def make_schedule(name: str, stages: Sequence[Any], num_microbatches: int, loss_fn: Any) -> Any:
    """The schedule of the stages of this rank; what each asks for is in config/sections/schedules.py."""
    if name in _OF_ONE_STAGE:
        (stage,) = stages
        return _OF_ONE_STAGE[name](stage, num_microbatches, loss_fn=loss_fn)
    return _OF_SEVERAL[name](list(stages), num_microbatches, loss_fn=loss_fn)
