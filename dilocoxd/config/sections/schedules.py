"""Pipeline schedules by the names that torch gives them: what each asks for, and which process has which slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCHEDULES: Final = ("1f1b", "gpipe", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble")
ZERO_BUBBLE: Final = frozenset({"interleavedzerobubble", "zbvzerobubble"})
"""Gradients of weights are computed while others wait for gradients of inputs. Source: arXiv 2401.10241."""
_INTERLEAVED: Final = frozenset({"interleaved1f1b", "interleavedzerobubble"})
_OF_A_V: Final = 2
"""Slices in each process."""


@dataclass(frozen=True, slots=True)
class SliceOrder:
    """Where the slices of a model lie in a pipeline of `ranks` processes, `per_rank` in each."""

    schedule: str
    ranks: int
    per_rank: int = 1

    def slices(self, rank: int) -> list[int]:
        """Those of one process, in the order of the model.

        >>> SliceOrder("interleaved1f1b", 2, 2).slices(0), SliceOrder("zbvzerobubble", 2, 2).slices(0)
        ([0, 2], [0, 3])
        """
        return [index for index in range(self.ranks * self.per_rank) if self.rank(index) == rank]

    def rank(self, index: int) -> int:
        """Of a slice: in turns, or, as a V, down the processes and up again."""
        if self.schedule == "zbvzerobubble" and index >= self.ranks:
            return 2 * self.ranks - 1 - index
        return index % self.ranks


def schedule_problem(order: SliceOrder, microbatches: int) -> str:
    """What keeps this schedule from running, a sentence with a remedy; empty: nothing."""
    schedule, ranks, per_rank = order.schedule, order.ranks, order.per_rank
    if schedule not in SCHEDULES:
        return f"pipeline schedule {schedule!r} is not supported: choose one of {', '.join(SCHEDULES)}"
    if schedule in _INTERLEAVED and (per_rank < 2 or ranks < 2):
        return (
            f"schedule {schedule} needs at least 2 ranks and 2 stages per rank, not {ranks} and {per_rank}: raise them"
            " (parallel.pipeline, parallel.stages_per_process) or use 1f1b"
        )
    if schedule in _INTERLEAVED and microbatches % ranks:
        return (
            f"schedule {schedule} needs a number of microbatches ({microbatches}) that is a multiple of the pipeline"
            f" ranks ({ranks}): change one of them"
        )
    if schedule == "zbvzerobubble" and (per_rank != _OF_A_V or ranks < 2):
        return (
            f"schedule {schedule} needs at least 2 ranks and exactly 2 stages per rank, not {ranks} and {per_rank}:"
            " change parallel.pipeline or parallel.stages_per_process, or use 1f1b"
        )
    if schedule in ("1f1b", "gpipe") and per_rank != 1:
        return f"schedule {schedule} runs one stage per rank, not {per_rank}: use interleaved1f1b"
    return ""


def split_backward_problem(schedule: str, *, is_checkpointed: bool, is_compiled: bool, gathers_narrow: bool) -> str:
    """What does not go with a backward pass in two parts, a sentence with a remedy; empty: nothing.

    `gathers_narrow`: whether parameters are gathered in 16 bits.
    """
    if schedule not in ZERO_BUBBLE:
        return ""
    with_it = f"schedule {schedule} computes the gradients of inputs and of weights apart"
    if is_checkpointed:
        return (
            f"{with_it}, and with activation_checkpointing = 'block' would compute each block again for both; set it to"
            " 'none', or use 1f1b"
        )
    if is_compiled:
        return f"{with_it}, which torch cannot do with compiled blocks; set parallel.compile to false, or use 1f1b"
    if gathers_narrow:
        return (
            f"{with_it}, and with parallel.traffic = 'bfloat16' the latter would be summed over microbatches in 16"
            " bits; set it to 'float32', or use 1f1b"
        )
    return ""
