"""The part of the shared state that is neither parameters nor optimizer: the schedule, low rank's warm start, norms.

Buffer MEMORY: two headers, then one region per segment: the result of the last pass, where the next round needs it (low
rank's subspace, compress/transform.py: recall; the center of centered clipping), then the norms that the last entries
recorded, that of entry k in place k % 8. State k's header lies in slot k % 2. So an update that a SIGKILL cut off finds
the header it started from, and writes the same norm again. Runs without any of this have no such buffer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final, NamedTuple

import torch
from torch import Tensor

from dilocoxd.compress.codec import as_bytes, load
from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.errors import WorkerError
from dilocoxd.outer.schedule import ScheduleState, measured_rank
from dilocoxd.outerworker.plan import HEADER_BYTES, OuterPlan
from dilocoxd.wire.clip_record import NORMS_KEPT, NUMBER_BYTES
from dilocoxd.wire.layout import Segment

SLOTS: Final = 2


class RankSum(NamedTuple):
    """Of the effective ranks of so many matrices."""

    total: int
    number: int


NO_RANKS: Final = RankSum(0, 0)


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
        header = Header(ScheduleState(**schedule), body["lowrank_r"])
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in _numbers(header)):
            raise ValueError("not all of its numbers are whole")
        return header
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise WorkerError(f"the memory of the shared state is damaged ({error}); start from a snapshot") from error


def _numbers(header: Header) -> tuple[object, ...]:
    """All of them: a donor's snapshot may have anything in their place."""
    schedule = header.schedule
    steps = schedule.inner_steps, schedule.next_inner_steps, schedule.shared_steps
    return header.lowrank_r, schedule.lowrank_r, schedule.next_lowrank_r, *steps, *schedule.measured


class Memory:
    """MEMORY of one worker; without that buffer everything is constant."""

    def __init__(self, plan: OuterPlan, window: memoryview) -> None:
        self._plan = plan
        self._window = window

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        sizes = (self._plan.memory_bytes(segment) for segment in self._plan.layout.segments)
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

    def stretch_of(self, segments: Sequence[Segment]) -> tuple[int, int]:
        """Bytes [first, stop) of `regions` that belong to consecutive segments."""
        if not segments:
            return 0, 0
        return self.region_start(segments[0]), self._offsets[segments[-1].index + 1] - SLOTS * HEADER_BYTES

    def begin(self) -> None:
        """State 0."""
        for segment in self._plan.segments if self._plan.norms_bytes else ():
            self._norms(segment)[:] = bytes(self._plan.norms_bytes)
        self.write_header(0, Header(self._plan.schedule.start))

    def check(self, round_index: int) -> None:
        """Raises WorkerError unless the header of a state that was brought names low ranks that this run has."""
        if not self._plan.has_memory:
            return
        header = self.header(round_index)
        of_results = (header.lowrank_r,) if round_index else ()
        for lowrank_r in (header.schedule.lowrank_r, header.schedule.next_lowrank_r, *of_results):
            if lowrank_r not in self._plan.payload_tables:
                raise WorkerError(f"the memory of the shared state names low rank {lowrank_r}, which this run has not")

    def advance(self, round_index: int, ranks: RankSum) -> None:
        """Entry `round_index` has been applied: the header of the state after it. Repeated: the same.

        `ranks`: what `take_ranks` gave, of all parts together."""
        if not self._plan.has_memory:
            return
        before, low_rank = self.header(round_index), self._adaptive
        measured = measured_rank(ranks.total, ranks.number, low_rank.lowrank_r_max) if low_rank is not None else None
        after = self._plan.schedule.advance(before.schedule, measured)
        self.write_header(round_index + 1, Header(after, before.schedule.lowrank_r))

    @property
    def _adaptive(self) -> LowRank | None:
        transform = self._plan.transform
        inner = transform.inner if isinstance(transform, Deferred) else transform
        return inner if isinstance(inner, LowRank) and inner.rank_eps is not None else None

    def take_ranks(self) -> RankSum:
        """Effective ranks that were learnt of the results of an entry; from now on none are known."""
        low_rank = self._adaptive
        if low_rank is None:
            return NO_RANKS
        found = RankSum(sum(low_rank.ranks.values()), len(low_rank.ranks))
        low_rank.ranks.clear()  # another low rank has other matrices: nothing of this entry may count in the next
        return found

    def keep(self, round_index: int, segment: Segment, results: Sequence[memoryview]) -> None:
        """Remember what the next round needs of this entry's result. `results` as they are sent, with their record."""
        if self._plan.keeps_results:
            self.region(segment)[: results[-1].nbytes] = results[-1]
        if self._plan.norms_bytes:
            first = round_index % NORMS_KEPT * NUMBER_BYTES
            body = results[-1].nbytes - self._plan.record_bytes
            self._norms(segment)[first : first + NUMBER_BYTES] = results[-1][body : body + NUMBER_BYTES]

    def _norms(self, segment: Segment) -> memoryview:
        region = self.region(segment)
        return region[region.nbytes - self._plan.norms_bytes :]

    def recent_norms(self, round_index: int, segment: Segment) -> list[float]:
        """What the last entries before entry `round_index` recorded, at most NORMS_KEPT of them."""
        if not self._plan.norms_bytes:
            return []
        numbers: list[float] = load(as_bytes(self._norms(segment)), torch.bfloat16).tolist()
        return numbers[:round_index]

    def region(self, segment: Segment) -> memoryview:
        """Where the result of one segment is kept."""
        first = self._offsets[segment.index]
        return self._window[first : first + self._plan.memory_bytes(segment)]

    def last_result(self, round_index: int, segment: Segment) -> memoryview:
        """The result kept of one segment; empty if there is none."""
        return self._kept_result(segment, self.lowrank_of_results(round_index))

    def _kept_result(self, segment: Segment, lowrank_r: int | None) -> memoryview:
        if not self._plan.keeps_results or lowrank_r is None:
            return memoryview(b"")
        return self.region(segment)[: self._plan.payload_bytes_at(lowrank_r)[-1][segment.index]]

    def lowrank_of_results(self, round_index: int) -> int | None:
        """Low rank of the results that state `round_index` keeps; None: it keeps none yet."""
        return self.header(round_index).lowrank_r if round_index else None

    def remembered(self, segment: Segment, lowrank_r: int | None) -> tuple[memoryview, ...]:
        """All that a state keeps of one segment, as its digest takes it; `lowrank_r`: of the results, None without."""
        if not self._plan.norms_bytes:
            return (self._kept_result(segment, lowrank_r),)
        return self._kept_result(segment, lowrank_r), self._norms(segment)

    def digested_header(self, round_index: int) -> bytes:
        """The header as the state's digest takes it; empty for runs without memory."""
        return bytes(self._slot(round_index)) if self._plan.has_memory else b""

    def center(self, round_index: int, segment: Segment) -> Tensor | None:
        """Values of the last result, float32[segment.numel], if shares are compared with it; zeros before the first."""
        if not self._plan.is_centered:
            return None
        values = torch.zeros(segment.numel)
        if round_index:
            result = self.last_result(round_index, segment)
            body = result[: result.nbytes - self._plan.record_bytes]
            self._plan.transform.expand(segment, body, (), values)
        return values

    def restore(self, round_index: int) -> None:
        """Let the transform learn again what it knew in state `round_index`; then tune it for the next entry."""
        header = self.header(round_index)
        if self._plan.transform.has_memory and round_index:
            self._plan.transform.tune(round_index, header.lowrank_r)
            for segment in self._plan.segments:
                result = self.last_result(round_index, segment)
                self._plan.transform.recall(segment, result[: result.nbytes - self._plan.record_bytes])
            self.take_ranks()
        self.tune(round_index)

    def tune(self, round_index: int) -> None:
        """The transform serves entry `round_index` from now on."""
        self._plan.transform.tune(round_index, self.header(round_index).schedule.lowrank_r)
