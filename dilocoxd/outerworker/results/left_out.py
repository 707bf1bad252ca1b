"""What an entry's state would be without one contribution, in the segments summed here: for the held-out loss.

Written when the entry is settled, before INBOX is free again, for the contribution that the request names. Shares lie
with the owner of a segment alone: each site measures its own part, and no byte more is sent. Of several outer parts
each writes its segments, and says so at a place of its own. Source: docs/adr/0039-loss-without-one-site.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dilocoxd.errors import WireError
from dilocoxd.outer.clipping import factor_of
from dilocoxd.outer.passes import SegmentPass, counted
from dilocoxd.outerworker.plan import FLOAT_BYTES
from dilocoxd.outerworker.results.reading import record_of
from dilocoxd.outerworker.results.weights import share_weights
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.left_out import LEFT_OUT_BYTES, LeftOutOf
from dilocoxd.wire.local.outer_worker import OwnedSegment, Settle


@dataclass(slots=True)
class LeavingOut:
    """LEFT_OUT of one outer worker, or of one part of it."""

    workspace: Workspace
    _is_written: bool = True
    """By this process, or by one before it."""

    def note(self, request: Settle) -> None:
        """An entry is being settled: what was written is over, and what the request wants is written."""
        plan, state = self.workspace.plan, self.workspace.state
        if not plan.has_left_out or state.formed_phase != request.phase:
            return  # asked again of a worker that had done it
        self.forget()
        if not request.without or state.round != request.round:
            return
        (place,) = request.without
        self._is_written = True
        try:
            is_counted = [self._write(one, place) for one in request.owned if self._is_wanted(one, place)]
        except WireError:
            return  # INBOX or RESULT no longer hold that round
        self._mark(LeftOutOf(request.round + 1, place, any(is_counted)).encode())

    def _is_wanted(self, one: OwnedSegment, place: int) -> bool:
        """It is of the last pass, and this part has it and the contribution in `place`."""
        plan = self.workspace.plan
        is_here = plan.holds(one.segment) and all(share.slot < plan.num_inbox_slots for share in one.shares)
        return is_here and one.pass_index == plan.num_passes - 1 and place < len(one.shares)

    def _write(self, owned: OwnedSegment, place: int) -> bool:
        """Whether anything of it was counted. Raises WireError."""
        workspace, plan = self.workspace, self.workspace.plan
        segment = plan.layout.segments[owned.segment]
        whole = workspace.buffers.whole_result(owned.pass_index, segment.index)
        factor = factor_of(record_of(plan, whole), place) if plan.record_bytes else 1.0
        if factor == 0.0:
            return False
        at = self._at(owned)
        share = workspace.buffers.share(owned.shares[place], owned.pass_index, segment.index)
        part = counted(at, share, factor, workspace.memory.center(workspace.state.round, segment))
        part.mul_(share_weights(plan, owned.shares)[place])
        here = plan.transform.touched(segment)
        values = workspace.buffers.left_out[segment.start : segment.stop][here]
        values.copy_(part[here].mul_(plan.gain) if plan.gain else self._difference(at, part[here]))
        return True

    def _at(self, owned: OwnedSegment) -> SegmentPass:
        plan, buffers = self.workspace.plan, self.workspace.buffers
        results = buffers.results(owned.pass_index, owned.segment)
        return SegmentPass(plan.transform, owned.pass_index, plan.layout.segments[owned.segment], results)

    def _difference(self, at: SegmentPass, part: Tensor) -> Tensor:
        """What the outer step would have done without `part` of the mean, less what it does; both from the state
        before the entry, whose optimizer is not touched."""
        workspace, segment = self.workspace, at.segment
        optimizer, transform, here = workspace.plan.optimizer, at.transform, at.transform.touched(segment)
        delta = torch.empty(segment.numel)
        transform.expand(segment, workspace.buffers.result(at.pass_index, segment.index), at.results, delta)
        steps_before = transform.steps_before(workspace.state.round)
        moved = []
        for mean in (delta[here] - part, delta[here]):
            slots = [slot[here].clone() for slot in workspace.buffers.slots_of(segment)]
            moved.append(torch.zeros_like(mean))
            optimizer.step_(moved[-1], slots, mean, steps_before)
        return moved[0].sub_(moved[1])

    def forget(self) -> None:
        """What was written is of no state that follows."""
        if self._is_written and self.workspace.plan.has_left_out:
            self._mark(LeftOutOf.NOTHING)  # before its values are gone
            self.workspace.buffers.clear(local_buffers.LEFT_OUT)
            self._is_written = False

    def _mark(self, said: bytes) -> None:
        plan = self.workspace.plan
        start = FLOAT_BYTES * plan.layout.numel + LEFT_OUT_BYTES * plan.part.index
        self.workspace.buffers.raw(local_buffers.LEFT_OUT)[start : start + LEFT_OUT_BYTES] = said
