"""The part of the shared state that is neither parameters nor optimizer: the schedule, and low rank's warm start.

Buffer MEMORY: two headers, then one region per segment with the result of the last pass, from which the next round's
subspace follows (compress/transform.py: recall). State k's header lies in slot k % 2, so that an update that a SIGKILL
cut off finds the header it started from. Runs with a constant schedule and without low rank have no such buffer.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.errors import WorkerError
from dilocoxd.outer.schedule import ScheduleState, measured_rank
from dilocoxd.outerworker.plan import HEADER_BYTES, Plan
from dilocoxd.wire.layout import Segment

SLOTS: Final = 2


@dataclass(frozen=True, slots=True)
class Header:
    """`lowrank_r`: of the results in the regions; 0 before the first entry."""

    schedule: ScheduleState
    lowrank_r: int = 0

    def encode(self) -> bytes:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode("ascii")
        assert len(text) <= HEADER_BYTES, "a window of 64 small numbers fits"
        return text.ljust(HEADER_BYTES)


def decode_header(data: bytes) -> Header:
    """Raises WorkerError if it is none."""
    try:
        body = json.loads(data)
        schedule = body["schedule"] | {"measured": tuple(body["schedule"]["measured"])}
        return Header(ScheduleState(**schedule), int(body["lowrank_r"]))
    except (ValueError, KeyError, TypeError) as error:
        raise WorkerError(f"the memory of the shared state is damaged ({error}); start from a snapshot") from error


class Memory:
    """MEMORY of one worker; without that buffer everything is constant."""

    def __init__(self, plan: Plan, window: memoryview) -> None:
        self._plan = plan
        self._window = window

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        sizes = (self._plan.memory_bytes(segment) for segment in self._plan.segments)
        return tuple(itertools.accumulate(sizes, initial=SLOTS * HEADER_BYTES))

    def header(self, round_index: int) -> Header:
        """Of shared state `round_index`, which must be the one loaded or the one being left."""
        if not self._plan.has_memory:
            start = self._plan.schedule.start
            steps = round_index * start.inner_steps
            return Header(ScheduleState(start.lowrank_r, start.inner_steps, start.lowrank_r, start.inner_steps, steps))
        return decode_header(bytes(self._slot(round_index)))

    def _slot(self, round_index: int) -> memoryview:
        first = round_index % SLOTS * HEADER_BYTES
        return self._window[first : first + HEADER_BYTES]

    def write_header(self, round_index: int, header: Header) -> None:
        if self._plan.has_memory:
            self._slot(round_index)[:] = header.encode()

    def header_bytes(self, round_index: int) -> memoryview:
        """The header as it stands in a snapshot."""
        return self._slot(round_index)

    @property
    def regions(self) -> memoryview:
        """All regions, as they stand in a snapshot behind the header."""
        return self._window[SLOTS * HEADER_BYTES :]

    def region_start(self, segment: Segment) -> int:
        """Offset in `regions`."""
        return self._offsets[segment.index] - SLOTS * HEADER_BYTES

    def begin(self) -> None:
        """State 0."""
        self.write_header(0, Header(self._plan.schedule.start))

    def advance(self, round_index: int) -> None:
        """Entry `round_index` has been applied: the header of the state after it. Repeated: the same."""
        if not self._plan.has_memory:
            return
        before = self.header(round_index)
        after = self._plan.schedule.advance(before.schedule, self._measured())
        self.write_header(round_index + 1, Header(after, before.schedule.lowrank_r))

    def _measured(self) -> int | None:
        transform = self._plan.transform
        inner = transform.inner if isinstance(transform, Deferred) else transform
        if not isinstance(inner, LowRank) or inner.rank_eps is None:
            return None
        measured = measured_rank(inner.ranks.values(), inner.lowrank_r_max)
        inner.ranks.clear()  # another low rank has other matrices: nothing of this entry may count in the next
        return measured

    def keep(self, segment: Segment, results: Sequence[memoryview]) -> None:
        """Remember what the next round needs of this entry's result."""
        if self._plan.memory_bytes(segment):
            self.region(segment)[: results[-1].nbytes] = results[-1]

    def region(self, segment: Segment) -> memoryview:
        """Where the result of one segment is kept."""
        first = self._offsets[segment.index]
        return self._window[first : first + self._plan.memory_bytes(segment)]

    def last_result(self, round_index: int, segment: Segment) -> memoryview:
        """The result kept of one segment; empty if there is none."""
        lowrank_r = self.header(round_index).lowrank_r if self._plan.memory_bytes(segment) else 0
        if not lowrank_r:
            return memoryview(b"")
        return self.region(segment)[: self._plan.payload_bytes_at(lowrank_r)[-1][segment.index]]

    def digest(self, round_index: int) -> bytes:
        """sha256 over header and results; empty for runs without memory."""
        if not self._plan.has_memory:
            return b""
        hasher = hashlib.sha256(self._slot(round_index))
        for segment in self._plan.segments:
            hasher.update(self.last_result(round_index, segment))
        return hasher.digest()

    def restore(self, round_index: int) -> None:
        """Let the transform learn again what it knew in state `round_index`; then tune it for the next entry."""
        header = self.header(round_index)
        if header.lowrank_r:
            self._plan.transform.tune(round_index, header.lowrank_r)
            for segment in self._plan.segments:
                self._plan.transform.recall(segment, self.last_result(round_index, segment))
            self._measured()
        self.tune(round_index)

    def tune(self, round_index: int) -> None:
        """The transform serves entry `round_index` from now on."""
        self._plan.transform.tune(round_index, self.header(round_index).schedule.lowrank_r)
