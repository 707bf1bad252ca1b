"""Buffers of parts that share none of them, or only some: what all of them have together is what one worker has."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.outerworker.journal import JOURNAL_BYTES
from dilocoxd.outerworker.plan import FLOAT_BYTES, OuterPlan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.figures import FIGURES_BYTES

_PAYLOADS = (local_buffers.OUTBOX, local_buffers.INBOX, local_buffers.RESULT)


class OwnBuffers:
    """A set of whole size for each part; what lies in `common` is that of part 0 in all."""

    def __init__(self, plans: Sequence[OuterPlan], common: Collection[str] = ()) -> None:
        self._plans = plans
        self._sets = [Buffers() for _ in plans]
        for part, own in enumerate(self._sets):
            own.provide(b for b in plans[part].described().buffers if not part or b.name not in common)
        self._common = common
        self.lowrank_r = plans[0].schedule.start.lowrank_r
        """Says where payloads lie."""

    def _set(self, part: int, name: str) -> Buffers:
        return self._sets[0 if name in self._common else part]

    def descriptors(self, part: int) -> dict[str, tuple[int, int]]:
        """Descriptor and size of each buffer that this part has."""
        names = [buffer.name for buffer in self._plans[part].described().buffers]
        return {name: (self._set(part, name).fd(name), self._set(part, name).size(name)) for name in names}

    def size(self, name: str) -> int:
        return self._sets[0].size(name)

    def punch(self, name: str, offset: int, length: int) -> None:
        """In all, as the daemon does."""
        for part in range(len(self._plans)):
            self._set(part, name).punch(name, offset, length)

    def write(self, name: str, offset: int, data: bytes) -> None:
        """In all, as peers and trainers do; each part looks only at what it holds."""
        for part in range(len(self._plans)):
            self._set(part, name).write(name, offset, data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Each byte from the part that holds it."""
        joined = bytearray(self._sets[0].read(name, 0, self.size(name)))
        for part, plan in enumerate(self._plans):
            for start, stop in self._held(plan, name):
                joined[start:stop] = self._set(part, name).read(name, start, stop - start)
        return bytes(joined[offset : offset + length])

    def _held(self, plan: OuterPlan, name: str) -> Iterator[tuple[int, int]]:
        if name in _PAYLOADS:
            yield from self._payloads(plan, name)
            return
        segments, size = [segment.index for segment in plan.segments], 0
        if name == local_buffers.MEMORY:
            starts = _starts([plan.memory_bytes(s) for s in plan.layout.segments], 2 * local_buffers.HEADER_BYTES)
            yield from ((starts[index], starts[index + 1]) for index in segments)
        elif name == local_buffers.FIGURES:
            yield from ((FIGURES_BYTES * index, FIGURES_BYTES * (index + 1)) for index in segments)
        elif name in (local_buffers.JOURNAL, local_buffers.UNDO):
            size = JOURNAL_BYTES if name == local_buffers.JOURNAL else self.size(name) // plan.part.num_parts
            yield size * plan.part.index, size * (plan.part.index + 1)
        else:
            size = FLOAT_BYTES * (plan.num_slots if name == local_buffers.MOMENTUM else 1)
            yield size * plan.stretch[0], size * plan.stretch[1]

    def _payloads(self, plan: OuterPlan, name: str) -> Iterator[tuple[int, int]]:
        slots = self.size(name) // plan.payload_total
        lengths, starts = plan.payload_bytes_at(self.lowrank_r), plan.payload_offsets_at(self.lowrank_r)
        for slot, row in itertools.product(range(slots), range(len(lengths))):
            for segment in plan.segments:
                start = slot * plan.payload_total + starts[row][segment.index]
                yield start, start + lengths[row][segment.index]

    def close(self) -> None:
        for own in self._sets:
            own.close()


def _starts(sizes: Sequence[int], first: int) -> list[int]:
    return list(itertools.accumulate(sizes, initial=first))
