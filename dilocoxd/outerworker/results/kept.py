"""Reads kept work: our payload, the results that say what it stands for, and how much of it was counted.

Body of a file (store/kept_work.py): our payload of the last pass, results of the passes before, then, in a run that
clips, the records of the last pass's results, and with centered clipping the regions of MEMORY before the entry.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from dilocoxd.errors import StoreError
from dilocoxd.ids import PhaseId
from dilocoxd.outer.clipping import decode_record, factor_of
from dilocoxd.outer.passes import SegmentPass
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.plan import HEADER_BYTES, OuterPlan, Table
from dilocoxd.outerworker.results.reading import Results, read_exactly
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store.kept_work import KeptWork, check_open, opened_work
from dilocoxd.wire.layout import Segment


class KeptShare:
    """One open file."""

    def __init__(self, workspace: Workspace, fd: int, kept: KeptWork, lengths: tuple[int, Table]) -> None:
        self.round = kept.round
        self.lowrank_r, self._table = lengths
        self._workspace = workspace
        self._plan = workspace.plan
        self._fd = fd
        self._place = kept.place
        self._rows = [self._table[-1], *self._table[:-1]]
        self._starts = list(itertools.accumulate(map(sum, self._rows), initial=kept.offset))

    def own(self, segment: Segment) -> memoryview:
        """Our payload of the last pass, as the codec knows it."""
        whole = self._read(0, segment)
        return whole[: whole.nbytes - self._plan.record_bytes]

    def results(self, segment: Segment) -> Results:
        """Of the passes before the last."""
        return tuple(self._read(row, segment) for row in range(1, len(self._rows)))

    def at(self, segment: Segment) -> SegmentPass:
        """The last pass, as it was when our payload was made."""
        return SegmentPass(self._plan.transform, self._plan.num_passes - 1, segment, self.results(segment))

    def factor(self, segment: Segment) -> float:
        """Raises WireError."""
        size = self._plan.record_bytes
        if not size:
            return 1.0
        return factor_of(
            decode_record(read_exactly(self._fd, self._starts[-1] + size * segment.index, size)), self._place
        )

    def center(self, segment: Segment) -> Tensor | None:
        """What shares were compared with, float32[segment.numel]."""
        if not self._plan.is_centered:
            return None
        values = torch.zeros(segment.numel)
        if self.round:
            first = self._starts[-1] + self._plan.record_bytes * self._plan.num_segments
            length = self._table[-1][segment.index]
            region = read_exactly(self._fd, first + self._workspace.memory.region_start(segment), length)
            self._plan.transform.expand(segment, region[: length - self._plan.record_bytes], (), values)
        return values

    def _read(self, row: int, segment: Segment) -> memoryview:
        lengths = self._rows[row]
        start = self._starts[row] + sum(lengths[: segment.index])
        return read_exactly(self._fd, start, lengths[segment.index])


@contextmanager
def open_kept(workspace: Workspace, path: Path, phase: PhaseId) -> Iterator[KeptShare]:
    """The work of this phase, whole and of this run. Raises OSError, StoreError, RequestFailed."""
    with opened_work(path) as file:
        kept, fd = check_open(file, path), os.dup(file.fileno())
    try:
        if kept.phase != phase:
            raise StoreError(f"{path} is of phase {kept.phase}, not {phase}")
        yield KeptShare(workspace, fd, kept, _lengths(workspace.plan, kept, path))
    finally:
        os.close(fd)


def _lengths(plan: OuterPlan, kept: KeptWork, path: Path) -> tuple[int, Table]:
    """Low rank and payload lengths of the entry it was given to; lengths rise with the low rank."""
    more = plan.record_bytes * plan.num_segments + (plan.memory_total - 2 * HEADER_BYTES if plan.is_centered else 0)
    for lowrank_r, table in plan.payload_tables.items():
        if sum(map(sum, table)) + more == kept.body_bytes:
            return lowrank_r, table
    raise RequestFailed("bad_payload", f"{path} does not belong to this run")
