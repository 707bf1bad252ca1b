"""The shared buffers as tensors and bytes, cut by segment. Moves nothing, decides nothing.

MOMENTUM is laid out segment by segment, and inside a segment slot by slot, so that one pass over the segments in order
is a pass over its bytes in order (the digest needs that).
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dilocoxd.errors import WorkerError
from dilocoxd.outerworker.journal import JOURNAL_BYTES, WritableBytes
from dilocoxd.outerworker.plan import FLOAT_BYTES, OuterPlan
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import Share


class MappedBuffers:
    """Views of the attached buffers. Raises WorkerError if one is missing or has the wrong size."""

    def __init__(self, plan: OuterPlan, maps: Mapping[str, mmap.mmap], descriptors: Mapping[str, int]) -> None:
        for buffer in plan.described().buffers:
            if buffer.name not in maps or len(maps[buffer.name]) != buffer.size:
                raise WorkerError(f"the daemon did not attach buffer {buffer.name} of {buffer.size} bytes")
        self._plan = plan
        self._maps = maps
        self._descriptors = descriptors
        own = plan.part.index
        self.journal: WritableBytes = maps[local_buffers.JOURNAL]
        if not plan.part.is_whole:
            self.journal = memoryview(maps[local_buffers.JOURNAL])[JOURNAL_BYTES * own : JOURNAL_BYTES * (own + 1)]
        self.anchor = self._floats(local_buffers.ANCHOR)
        self.momentum = self._floats(local_buffers.MOMENTUM)
        self.phase = self._floats(local_buffers.PHASE)
        self.feedback = self._floats(local_buffers.FEEDBACK)
        self.owner_feedback = self._floats(local_buffers.OWNER_FEEDBACK)
        self.left_out = self._floats(local_buffers.LEFT_OUT)[: plan.layout.numel]
        self.undo = self._floats(local_buffers.UNDO).view(plan.part.num_parts, -1)[own]
        self.lowrank_r = plan.schedule.start.lowrank_r
        """Of the entry that OUTBOX, INBOX and RESULT are used for now: says where payloads lie."""
        self._outbox = memoryview(maps[local_buffers.OUTBOX])
        self._inbox = memoryview(maps[local_buffers.INBOX])
        self._result = memoryview(maps[local_buffers.RESULT])

    def _floats(self, name: str) -> Tensor:
        if name not in self._maps:
            return torch.empty(0)
        return torch.frombuffer(self._maps[name], dtype=torch.float32)

    def momentum_of(self, segment: Segment) -> Tensor:
        """All slots of one segment, float32[slots * numel]."""
        slots = self._plan.num_slots
        return self.momentum[slots * segment.start : slots * segment.stop]

    def slots_of(self, segment: Segment) -> list[Tensor]:
        """The optimizer's state slots of one segment."""
        slots = self._plan.num_slots
        return list(self.momentum_of(segment).view(slots, segment.numel)) if slots else []

    def outbox(self, pass_index: int, segment: int) -> memoryview:
        """Own payload of one segment in one pass, as the codec knows it."""
        return self._body(self.whole_outbox(pass_index, segment), pass_index)

    def whole_outbox(self, pass_index: int, segment: int) -> memoryview:
        """As it is sent: with room for a record, all zeros."""
        return self._payload(self._outbox, 0, pass_index, segment)

    def result(self, pass_index: int, segment: int) -> memoryview:
        """Result payload of one segment in one pass, as the codec knows it."""
        return self._body(self.whole_result(pass_index, segment), pass_index)

    def whole_result(self, pass_index: int, segment: int) -> memoryview:
        """As it is sent: with its record."""
        return self._payload(self._result, 0, pass_index, segment)

    def _body(self, payload: memoryview, pass_index: int) -> memoryview:
        return payload[: payload.nbytes - self._plan.record_bytes_of(pass_index)]

    def results(self, num_passes: int, segment: int) -> tuple[memoryview, ...]:
        """Result payloads of one segment in the first `num_passes` passes."""
        return tuple(self.result(index, segment) for index in range(num_passes))

    def share(self, share: Share, pass_index: int, segment: int) -> memoryview:
        """Payload of a contributor: from its INBOX slot, or our own."""
        if share.slot < 0:
            return self.outbox(pass_index, segment)
        whole = self._payload(self._inbox, share.slot * self._plan.payload_total, pass_index, segment)
        return self._body(whole, pass_index)

    def outbox_bytes(self) -> memoryview:
        """The whole own payload."""
        return self._outbox

    def payload_stretches(self, segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
        """Where OUTBOX has the payloads of consecutive segments: bytes [first, stop) for each pass."""
        for pass_index in range(self._plan.num_passes if segments else 0):
            last, length = self._place(pass_index, segments[-1].index)
            yield self._place(pass_index, segments[0].index)[0], last + length

    def look_at(self, name: str, start: int, stop: int) -> memoryview | bytes:
        """Bytes [start, stop) of a buffer. One of several parts reads what others have without mapping their pages."""
        fd = None if self._plan.part.is_whole else self._descriptors.get(name)
        return memoryview(self._maps[name])[start:stop] if fd is None else os.pread(fd, stop - start, start)

    def raw(self, name: str) -> memoryview:
        """Bytes of a whole buffer; empty if the plan has none of that name."""
        return memoryview(self._maps[name]) if name in self._maps else memoryview(bytearray())

    def _payload(self, view: memoryview, base: int, pass_index: int, segment: int) -> memoryview:
        start, length = self._place(pass_index, segment)
        return view[base + start : base + start + length]

    def _place(self, pass_index: int, segment: int) -> tuple[int, int]:
        offsets = self._plan.payload_offsets_at(self.lowrank_r)
        return offsets[pass_index][segment], self._plan.payload_bytes_at(self.lowrank_r)[pass_index][segment]

    def release_share(self, share: Share, pass_index: int, segment: int) -> None:
        """Give the pages of a used INBOX payload back to the system (only whole pages inside it)."""
        if share.slot < 0:
            return
        offset, length = self._place(pass_index, segment)
        start = share.slot * self._plan.payload_total + offset
        self._release(local_buffers.INBOX, start, start + length)

    def release_owner_feedback(self, segment: Segment) -> None:
        """Give back what a residual of zeros takes."""
        self._release(local_buffers.OWNER_FEEDBACK, segment.start * FLOAT_BYTES, segment.stop * FLOAT_BYTES)

    def has_owner_feedback(self, segment: Segment) -> bool:
        """False if nothing was ever written there. Reading would make the pages exist, so look before you read."""
        if not self._plan.has_owner_feedback:
            return False
        fd = self._descriptors.get(local_buffers.OWNER_FEEDBACK)
        # Pages at the edges are shared with the neighbours and say nothing about this segment.
        first, last = whole_pages(segment.start * FLOAT_BYTES, segment.stop * FLOAT_BYTES)
        if fd is None or last <= first:
            return True
        try:
            return os.lseek(fd, first, os.SEEK_DATA) < last
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False

    def _release(self, name: str, start: int, stop: int) -> None:
        first, last = whole_pages(start, stop)
        if last > first:
            self._maps[name].madvise(mmap.MADV_REMOVE, first, last - first)

    def clear(self, name: str) -> None:
        """Make what this process has of a buffer of values zero, by giving its pages back."""
        if name not in self._maps:
            return
        if self._plan.part.is_whole:
            self._maps[name].madvise(mmap.MADV_REMOVE, 0, len(self._maps[name]))
            return
        size = FLOAT_BYTES * (self._plan.num_slots if name == local_buffers.MOMENTUM else 1)
        first, last = (size * value for value in self._plan.stretch)
        self._release(name, first, last)
        edges = whole_pages(first, last)  # what lies between them has just become zero
        for start, stop in ((first, min(edges[0], last)), (max(edges[1], first), last)):
            self._maps[name][start:stop] = bytes(max(0, stop - start))

    def clear_outbox(self) -> None:
        """Make OUTBOX zero. Of several parts none does: where it wrote depends on the low rank of that time; when all
        are done the daemon does it."""
        if self._plan.part.is_whole:
            self._maps[local_buffers.OUTBOX].madvise(mmap.MADV_REMOVE, 0, len(self._maps[local_buffers.OUTBOX]))


def whole_pages(start: int, stop: int) -> tuple[int, int]:
    """The part of bytes [start, stop) that consists of whole pages; empty if last <= first."""
    return -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE


def tensor_bytes(values: Tensor) -> memoryview:
    """The bytes of a contiguous float32 tensor, without a copy (for hashing and writing)."""
    return values.view(torch.uint8).numpy().data
