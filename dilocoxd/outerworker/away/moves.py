"""Which bytes of which buffer a request makes an outer part read or write, as far as others do too.

ANCHOR, PHASE, LEFT_OUT and the payloads are shared with trainers and with the daemon, at the head, and it looks into
MEMORY; all else is the part's alone and never moves. Source: docs/adr/0035-a-site-on-several-machines.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dilocoxd.outerworker.plan import FLOAT_BYTES, HEADER_BYTES, OuterPlan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.left_out import LEFT_OUT_BYTES
from dilocoxd.wire.local.outer_parts import PartStepped
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    BaseCopied,
    ContributionFormed,
    FormContribution,
    PassReady,
    PreparePass,
    Reduce,
    SegmentReduced,
    Settle,
    Settled,
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [first, stop) of a buffer."""

    name: str
    first: int
    stop: int


class Moves:
    """Of one part; `lowrank_r` follows the state, and says where payloads lie."""

    def __init__(self, plan: OuterPlan) -> None:
        self._plan = plan
        self.lowrank_r = plan.schedule.start.lowrank_r

    def before(self, request: Any) -> list[Stretch]:
        """What the part must have of the head before it does this."""
        match request:
            case FormContribution(is_check=True):
                return self._values(local_buffers.PHASE)
            case Reduce():
                return list(self._of_reduce(request))
            case PreparePass():
                # Those of earlier passes came with earlier passes.
                return self._payloads(local_buffers.RESULT, request.lowrank_r, [request.pass_index - 1])
            case ApplyResult(path="", is_check=True):
                return self._results(request.lowrank_r)
            case Settle(path="", is_included=True):
                return self._results(self.lowrank_r)
            case _:
                return []

    def after(self, request: Any, answer: Any) -> list[Stretch]:
        """What the head must have of the part before it hears the answer."""
        match answer:
            case BaseCopied():
                return self._values(local_buffers.PHASE)
            case ContributionFormed(is_finite=True):
                return self._payloads(local_buffers.OUTBOX, request.lowrank_r, [0])
            case PassReady() if answer.pass_index < self._plan.num_passes:
                return self._payloads(local_buffers.OUTBOX, request.lowrank_r, [answer.pass_index])
            case SegmentReduced():
                return self._payloads(local_buffers.RESULT, request.lowrank_r, [answer.pass_index], answer.segment)
            case PartStepped():
                return [*self._values(local_buffers.ANCHOR), *self._memory()]
            case Settled():
                return self._left_out(request)
            case _:
                return []

    def payload_places(self, lowrank_r: int) -> list[tuple[int, int]]:
        """Where a file of results has those of this part, for each pass: from its first byte of results."""
        return [(each.first, each.stop) for each in self._results(lowrank_r)]

    def _values(self, name: str) -> list[Stretch]:
        first, stop = self._plan.stretch
        return [Stretch(name, FLOAT_BYTES * first, FLOAT_BYTES * stop)] if first < stop else []

    def _left_out(self, request: Settle) -> list[Stretch]:
        """What one contribution did, and last what says so."""
        plan = self._plan
        if not request.without or not plan.has_left_out:
            return []
        summed = {one.segment for one in request.owned if plan.holds(one.segment)}
        values = [plan.layout.segments[index] for index in sorted(summed)]
        mark = FLOAT_BYTES * plan.layout.numel + LEFT_OUT_BYTES * plan.part.index
        return [
            *(Stretch(local_buffers.LEFT_OUT, FLOAT_BYTES * one.start, FLOAT_BYTES * one.stop) for one in values),
            Stretch(local_buffers.LEFT_OUT, mark, mark + LEFT_OUT_BYTES),
        ]

    def _memory(self) -> list[Stretch]:
        """What results leave to the next round: the daemon takes it into audits and kept work."""
        plan = self._plan
        if not plan.segments or not plan.has_memory:
            return []
        starts = list(itertools.accumulate(map(plan.memory_bytes, plan.layout.segments), initial=2 * HEADER_BYTES))
        first, stop = starts[plan.segments[0].index], starts[plan.segments[-1].index + 1]
        return [Stretch(local_buffers.MEMORY, first, stop)] if first < stop else []

    def _results(self, lowrank_r: int) -> list[Stretch]:
        return self._payloads(local_buffers.RESULT, lowrank_r, range(self._plan.num_passes))

    def _payloads(
        self, name: str, lowrank_r: int, passes: Iterable[int], segment: int | None = None, slot: int = 0
    ) -> list[Stretch]:
        """Of one segment, or of all of this part: they lie back to back."""
        if not self._plan.segments or (segment is not None and segment >= self._plan.num_segments):
            return []
        first = self._plan.segments[0].index if segment is None else segment
        last = self._plan.segments[-1].index if segment is None else segment
        starts, lengths = self._plan.payload_offsets_at(lowrank_r), self._plan.payload_bytes_at(lowrank_r)
        base = slot * self._plan.payload_total
        return [
            Stretch(name, base + starts[number][first], base + starts[number][last] + lengths[number][last])
            for number in passes
            if 0 <= number < self._plan.num_passes
        ]

    def _of_reduce(self, request: Reduce) -> Iterator[Stretch]:
        own = request.lowrank_r, [request.pass_index], request.segment
        for share in request.shares:
            if 0 <= share.slot < self._plan.num_inbox_slots:
                yield from self._payloads(local_buffers.INBOX, *own, slot=share.slot)
        earlier = range(min(request.pass_index, self._plan.num_passes))
        yield from self._payloads(local_buffers.RESULT, request.lowrank_r, earlier, request.segment)
