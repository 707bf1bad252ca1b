"""Reads the results of an entry, segment by segment: from the RESULT buffer, or from a file of the log.

A result of the last pass ends with a record (outer/clipping.py); `bodies` is what the codecs know.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dilocoxd.outer.clipping import ClipRecord, decode_record
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.wire.layout import Segment

Results = tuple[memoryview, ...]
"""Of one segment: the payload of each pass, as it was sent."""


@contextmanager
def open_results(
    workspace: Workspace, path: str, offset: int, lowrank_r: int
) -> Iterator[Callable[[Segment], Results]]:
    """Results of a segment; `path` empty: in RESULT. Raises OSError, and RequestFailed(bad_payload) while it reads."""
    plan = workspace.plan
    if not path:
        passes = range(plan.num_passes)
        yield lambda segment: tuple(workspace.buffers.whole_result(index, segment.index) for index in passes)
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        lengths, starts = plan.payload_bytes_at(lowrank_r), plan.payload_offsets_at(lowrank_r)

        def read(segment: Segment) -> Results:
            places = zip(lengths, starts, strict=True)
            return tuple(read_exactly(fd, offset + start[segment.index], row[segment.index]) for row, start in places)

        yield read
    finally:
        os.close(fd)


def bodies(plan: OuterPlan, results: Results) -> Results:
    """Without the record."""
    last = results[-1]
    return (*results[:-1], last[: last.nbytes - plan.record_bytes])


def record_of(plan: OuterPlan, result: memoryview) -> ClipRecord:
    """What a result of the last pass says of its shares; nothing where nothing is clipped. Raises WireError."""
    return decode_record(result[result.nbytes - plan.record_bytes :]) if plan.record_bytes else ClipRecord()


def read_exactly(fd: int, offset: int, length: int) -> memoryview:
    """So many bytes of a file. Raises RequestFailed(bad_payload) if it is shorter."""
    buffer = memoryview(bytearray(length))
    left = buffer
    while left.nbytes:
        count = os.preadv(fd, [left], offset)
        if not count:
            raise RequestFailed("bad_payload", "the payload's file ends too early")
        left = left[count:]
        offset += count
    return buffer
