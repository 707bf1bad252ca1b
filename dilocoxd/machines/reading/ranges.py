"""Stretches of sample numbers, and queues of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class SampleRange:
    """Samples `start` to `stop` - 1 of the endless sequence of all epochs."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Queue = tuple[SampleRange, ...]
"""Samples to be read in this order."""


def num_leased(count: int, share: tuple[int, int]) -> int:
    """Leased ones of the first `count` samples of a phase that leases a of b, `share` = (a, b).

    Sample k, from 0, is leased if `num_leased(k + 1) > num_leased(k)`.
    """
    leased, of_so_many = share
    return count * leased // of_so_many


def num_samples(queue: Iterable[SampleRange]) -> int:
    """Of all its ranges."""
    return sum(len(part) for part in queue)


def split(queue: Sequence[SampleRange], count: int) -> tuple[Queue, Queue]:
    """(the first `count` samples, the rest); all in the first if there are fewer."""
    first: list[SampleRange] = []
    for index, part in enumerate(queue):
        if count < len(part):
            head, tail = SampleRange(part.start, part.start + count), SampleRange(part.start + count, part.stop)
            return (*first, *([head] if count else [])), (tail, *queue[index + 1 :])
        first.append(part)
        count -= len(part)
    return tuple(first), ()


def joined(queue: Iterable[SampleRange]) -> Queue:
    """The same samples in the same order, in as few ranges as there can be: equal for equal samples."""
    parts: list[SampleRange] = []
    for part in queue:
        is_next = bool(parts) and parts[-1].stop == part.start
        parts.append(SampleRange(parts.pop().start, part.stop) if is_next else part)
    return tuple(parts)
