"""What every operation of the outer worker shares, and the segment transaction that makes SIGKILL harmless.

A step of an in-place update is: copy what it changes to UNDO, mark the journal, change, mark the journal again. A
restarted worker puts UNDO back if the mark says that a change was under way, and goes on from the last complete step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.figures import FiguresTable
from dilocoxd.outerworker.journal import JournalState, Saved, Update, UpdateJournal
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.schedule_memory import Memory
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers


@dataclass(frozen=True, slots=True)
class KnownLeaves:
    """What a state is made of, as far as this process has hashed it."""

    round: int = -1
    whole: tuple[bytes, ...] = ()
    """Hash of each segment (wire/state_digest.py); empty: not known."""


@dataclass
class Workspace:
    """Plan, shared buffers, journal, and scratch memory of one segment."""

    plan: OuterPlan
    buffers: MappedBuffers
    journal: UpdateJournal
    report: Reporter
    memory: Memory = field(init=False)
    figures: FiguresTable = field(init=False)
    scratch: Tensor = field(init=False)
    """float32[largest segment]: values of the segment being worked on."""
    leaves: KnownLeaves = KnownLeaves()
    """Of the state now loaded; a restarted worker knows none until the next entry."""

    def __post_init__(self) -> None:
        self.figures = FiguresTable(self.buffers.raw(local_buffers.FIGURES))
        self.memory = Memory(self.plan, self.buffers.raw(local_buffers.MEMORY))
        self.scratch = torch.empty(self.plan.segment_numel_max)

    @property
    def state(self) -> JournalState:
        """The journal's newest contents."""
        return self.journal.state

    def tune(self, *, is_fresh: bool = False) -> None:
        """Transform and payload places follow the state now loaded; `is_fresh`: nobody has learnt its results yet."""
        (self.memory.restore if is_fresh else self.memory.tune)(self.state.round)
        self.buffers.lowrank_r = self.memory.header(self.state.round).schedule.lowrank_r

    def scratch_of(self, segment: Segment) -> Tensor:
        """Scratch of the segment's length; contents undefined."""
        return self.scratch[: segment.numel]

    def feedback_of(self, segment: Segment) -> Tensor:
        return self.buffers.feedback[segment.start : segment.stop]

    def owner_feedback_of(self, segment: Segment) -> Tensor:
        return self.buffers.owner_feedback[segment.start : segment.stop]

    def anchor_of(self, segment: Segment) -> Tensor:
        return self.buffers.anchor[segment.start : segment.stop]

    def phase_of(self, segment: Segment) -> Tensor:
        return self.buffers.phase[segment.start : segment.stop]

    def require(self, condition: bool, detail: str) -> None:
        """Raise RequestFailed(bad_request) unless `condition`."""
        if not condition:
            raise RequestFailed("bad_request", detail)

    def require_loaded(self) -> None:
        if not self.state.is_loaded:
            raise RequestFailed("not_loaded", "no shared state is loaded; send LoadState first")

    def begin(self, operation: Update, argument: int, **fields: object) -> None:
        """Journal, in one write, that an operation starts at its first step."""
        self.journal.write(operation=operation, argument=argument, position=0, **fields)

    def transact(self, saved: Saved, segment: Segment, change: Callable[[], dict[str, object]]) -> None:
        """One step: run `change` on `segment`; its result goes to the journal together with the new position."""
        self._copy(saved, segment, to_undo=True)
        self.journal.write(saved=saved, saved_segment=segment.index)
        fields = change()
        self.journal.write(saved=Saved.NOTHING, position=self.state.position + 1, **fields)

    def undo_torn_step(self) -> None:
        """After a restart: put back what a killed step may have half changed."""
        if self.state.saved != Saved.NOTHING:
            self._copy(Saved(self.state.saved), self.plan.layout.segments[self.state.saved_segment], to_undo=False)
            self.journal.write(saved=Saved.NOTHING)

    def _copy(self, saved: Saved, segment: Segment, *, to_undo: bool) -> None:
        start = 0
        for values in self._saved_parts(saved, segment):
            undo = self.buffers.undo[start : start + values.numel()]
            (undo if to_undo else values).copy_(values if to_undo else undo)
            start += values.numel()

    def _saved_parts(self, saved: Saved, segment: Segment) -> list[Tensor]:
        if saved == Saved.STATE:
            return [self.anchor_of(segment), self.buffers.momentum_of(segment)]
        if saved == Saved.FEEDBACK:
            return [self.feedback_of(segment)]
        if saved == Saved.BOTH_FEEDBACKS:
            return [self.feedback_of(segment), self.owner_feedback_of(segment)]
        return [self.owner_feedback_of(segment)]
