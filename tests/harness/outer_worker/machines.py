"""Machines of one site, each with buffers and files of its own: what they have together is what one machine would have.

All are folders and memory of this one, so that a test sees what somebody knows that was not told.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.machine_files import LocalFiles
from dilocoxd.outerworker.journal import JOURNAL_BYTES
from dilocoxd.outerworker.plan import FLOAT_BYTES, OuterPlan
from dilocoxd.store.snapshots import SnapshotIndex
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.figures import FIGURES_BYTES
from dilocoxd.wire.local.outer_parts import HashSnapshot
from dilocoxd.wire.local.outer_worker import LoadState, RestoreSite, SaveSite, WriteSnapshot
from dilocoxd.wire.placement import OuterPart

_PAYLOADS = (local_buffers.OUTBOX, local_buffers.INBOX, local_buffers.RESULT)


def placed(nodes: Sequence[int]) -> list[OuterPart]:
    """All parts, where machines have so many each."""
    here = [range(stop - count, stop) for stop, count in zip(itertools.accumulate(nodes), nodes, strict=True)]
    return [OuterPart(part, sum(nodes), on.start, sum(nodes) - on.stop) for on in here for part in on]


def on_machine(node: int, request: Any) -> Any:
    """The request with the paths that this machine has."""
    files = NodeFiles(node)
    if isinstance(request, SaveSite | RestoreSite):
        return dataclasses.replace(request, path=str(files.there(Path(request.path))))
    if isinstance(request, LoadState | WriteSnapshot | HashSnapshot) and request.directory:
        return dataclasses.replace(request, directory=str(files.there(Path(request.directory))))
    return request


class NodeFiles(LocalFiles):
    """Of a machine that has them beside those of the first, in a folder of its own."""

    def __init__(self, node: int) -> None:
        self._node = node

    def there(self, path: Path) -> Path:
        """Where this machine has what lies at `path` on the first."""
        return path.parent / f"node{self._node}" / path.name if self._node else path

    async def prepare(self, directory: Path) -> None:
        await super().prepare(self.there(directory))

    async def publish(self, directory: Path, index: SnapshotIndex) -> None:
        await super().publish(self.there(directory), index)

    async def forget(self, directory: Path) -> None:
        await super().forget(self.there(directory))

    async def read(self, path: Path, first: int, stop: int) -> bytes:
        return await super().read(self.there(path.parent) / path.name, first, stop)


class OwnBuffers:
    """Each set has the whole size, and pages where its parts write."""

    def __init__(self, plans: Sequence[OuterPlan], nodes: Sequence[int]) -> None:
        """`plans`: of each part; `nodes`: how many parts each machine has."""
        self._plans = plans
        self._sets = [Buffers() for _ in nodes]
        self.node_of = tuple(node for node, num_parts in enumerate(nodes) for _ in range(num_parts))
        """By part."""
        for own in self._sets:
            own.provide(plans[0].described().buffers)
        self.lowrank_r = plans[0].schedule.start.lowrank_r
        """Says where payloads lie."""

    def descriptors(self, part: int) -> dict[str, tuple[int, int]]:
        """Descriptor and size of each buffer that this part has."""
        own, names = self._sets[self.node_of[part]], [b.name for b in self._plans[part].described().buffers]
        return {name: (own.fd(name), own.size(name)) for name in names}

    def size(self, name: str) -> int:
        return self._sets[0].size(name)

    def punch(self, name: str, offset: int, length: int) -> None:
        """In all, as the daemon does."""
        for own in self._sets:
            own.punch(name, offset, length)

    def write(self, name: str, offset: int, data: bytes | bytearray | memoryview) -> None:
        """In all, as peers and trainers do; each part looks only at what it holds."""
        for own in self._sets:
            own.write(name, offset, data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Each byte from the machine of the part that holds it."""
        if len(self._sets) == 1:
            return self._sets[0].read(name, offset, length)
        joined = bytearray(self._sets[0].read(name, 0, self.size(name)))
        for part, plan in enumerate(self._plans):
            for start, stop in self._held(plan, name):
                joined[start:stop] = self._sets[self.node_of[part]].read(name, start, stop - start)
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
