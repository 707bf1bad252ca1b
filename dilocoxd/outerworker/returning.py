"""Puts a contribution that left the chain with a fork back into the error feedback, or takes it out on its return.

While it was in the chain FEEDBACK held d - own; with own added it holds d again (outer/feedback.py says how exactly).
All is linear: whatever was added to FEEDBACK or sent since then stays where it is.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from dilocoxd.errors import StoreError, WireError
from dilocoxd.outerworker.core import Core
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import Operation, Saved
from dilocoxd.outerworker.plan import Table
from dilocoxd.store.own_work import KeptWork, check_work
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import ReturnWork, WorkReturned


class Returning:
    """ReturnWork."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._table: Table = ()

    def handle(self, request: ReturnWork) -> WorkReturned:
        """FEEDBACK <- FEEDBACK +- what the contribution carried. Repeated: no effect.

        Raises RequestFailed (store, bad_payload) with nothing changed when the file is not usable.
        """
        core, state = self._core, self._core.state
        answer = WorkReturned(request.request, request.phase)
        if state.returned_request == request.request:
            return answer
        is_resumed = state.operation == Operation.RETURN and state.argument == request.request
        core.require(is_resumed or state.operation == Operation.NONE, "another update was interrupted; ask it first")
        try:
            kept = check_work(Path(request.path))
            core.require(kept.phase == request.phase, f"{request.path} is of phase {kept.phase}, not {request.phase}")
            fd = os.open(request.path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, StoreError) as error:
            raise RequestFailed("store", f"the work of phase {request.phase}: {error}") from error
        try:
            lengths = self._lengths(kept, request.path)
            # What it carried is said in the terms of the entry that it was given to.
            core.plan.transform.tune(kept.round, lengths[0])
            self._table = lengths[1]
            self._check(fd, kept)
            if not is_resumed:
                core.begin(Operation.RETURN, request.request)
            self._move(fd, kept, is_withdrawn=request.is_withdrawn)
        finally:
            os.close(fd)
            if core.state.is_loaded:
                core.tune()
        core.journal.write(operation=Operation.NONE, returned_request=request.request)
        return answer

    def _lengths(self, kept: KeptWork, path: str) -> tuple[int, Table]:
        """Low rank and payload lengths of the entry it was given to; lengths rise with the low rank."""
        for lowrank_r, table in self._core.plan.payload_tables.items():
            if sum(map(sum, table)) == kept.body_bytes:
                return lowrank_r, table
        raise RequestFailed("bad_payload", f"{path} does not belong to this run")

    def _check(self, fd: int, kept: KeptWork) -> None:
        """It was hashed when it was formed, but results of earlier passes came from others."""
        core = self._core
        core.report.begin("check", len(core.plan.segments))
        for segment in core.plan.segments:
            own, results = self._payloads(fd, kept, segment)
            try:
                core.plan.transform.expand(segment, own, results, core.scratch_of(segment))
            except WireError as error:
                raise RequestFailed("bad_payload", f"kept segment {segment.index}: {error}") from error
            core.report.step(segment.index)

    def _move(self, fd: int, kept: KeptWork, *, is_withdrawn: bool) -> None:
        core, transform = self._core, self._core.plan.transform
        core.report.begin("return", len(core.plan.segments))
        for segment in core.plan.segments[core.state.position :]:
            own, results = self._payloads(fd, kept, segment)
            move = transform.subtract_expanded_ if is_withdrawn else transform.add_expanded_
            e = core.feedback_of(segment)

            def change(
                own: memoryview = own,
                results: tuple[memoryview, ...] = results,
                segment: Segment = segment,
            ) -> dict[str, object]:
                move(segment, own, results, e)  # noqa: B023 - runs before the loop goes on
                return {}

            core.transact(Saved.FEEDBACK, segment, change)
            core.report.step(segment.index)

    def _payloads(self, fd: int, kept: KeptWork, segment: Segment) -> tuple[memoryview, tuple[memoryview, ...]]:
        """Own payload of the last pass, and the results of the passes before it, of one segment."""
        lengths = self._table
        rows = [lengths[-1], *lengths[:-1]]
        starts = itertools.accumulate(map(sum, rows), initial=kept.offset)
        parts = [
            _read(fd, start + sum(row[: segment.index]), row[segment.index])
            for start, row in zip(starts, rows, strict=False)
        ]
        return parts[0], tuple(parts[1:])


def _read(fd: int, offset: int, length: int) -> memoryview:
    buffer = bytearray(length)
    if os.preadv(fd, [buffer], offset) != length:
        raise RequestFailed("store", "the kept work became shorter while it was read")
    return memoryview(buffer)
