"""What an entry's state would be without one contribution, in the segments summed here: for the held-out loss.

Written when the entry is settled, before INBOX is free again; for one entry of `every`, and one contribution of it,
both drawn by lot, so that nobody knows which of its rounds is looked at. Shares lie with the owner of a segment alone:
each site measures its own part, and no byte more is sent. Source: docs/adr/0039-loss-without-one-site.md.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

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

MEMBERS_MIN: Final = 2


@dataclass(slots=True)
class LeavingOut:
    """LEFT_OUT of one outer worker."""

    workspace: Workspace
    every: int
    """0: never."""
    lot: random.Random
    _is_written: bool = True
    """By this process, or by one before it."""

    def note(self, request: Settle) -> None:
        """An entry is being settled: what was written is over, and if the lot says so something new is."""
        if not self.workspace.plan.has_left_out:
            return
        state = self.workspace.state
        if state.formed_phase != request.phase:
            return  # asked again of a worker that had done it
        self._clear()
        if self.every == 0 or not self._is_evaluated(request) or self.lot.randrange(self.every):
            return
        owned = [one for one in request.owned if self._is_last_pass(one)]
        if not request.is_included or state.round != request.round or not owned:
            return
        place = self.lot.randrange(min(len(one.shares) for one in owned))
        self._is_written = True
        try:
            is_counted = [self._write(one, place) for one in owned]
        except WireError:
            return  # INBOX or RESULT no longer hold that round
        if any(is_counted):
            self._mark(LeftOutOf(request.round + 1, place).encode())

    def _is_last_pass(self, one: OwnedSegment) -> bool:
        plan = self.workspace.plan
        is_known = one.segment < plan.num_segments and all(share.slot < plan.num_inbox_slots for share in one.shares)
        return is_known and one.pass_index == plan.num_passes - 1 and len(one.shares) >= MEMBERS_MIN

    def _is_evaluated(self, request: Settle) -> bool:
        every = self.workspace.plan.manifest.data.evaluate_every_rounds
        return every > 0 and (request.round + 1) % every == 0

    def _write(self, owned: OwnedSegment, place: int) -> bool:
        """Whether anything of it was counted. Raises WireError."""
        workspace, plan = self.workspace, self.workspace.plan
        segment = plan.layout.segments[owned.segment]
        whole = workspace.buffers.whole_result(owned.pass_index, segment.index)
        factor = factor_of(record_of(plan, whole), place) if plan.record_bytes else 1.0
        if factor == 0.0:
            return False
        results = workspace.buffers.results(owned.pass_index, segment.index)
        at = SegmentPass(plan.transform, owned.pass_index, segment, results)
        share = workspace.buffers.share(owned.shares[place], owned.pass_index, segment.index)
        values = counted(at, share, factor, workspace.memory.center(workspace.state.round, segment))
        values.mul_(share_weights(plan, owned.shares)[place] * plan.gain)
        here = plan.transform.touched(segment)
        workspace.buffers.left_out[segment.start : segment.stop][here] = values[here]
        return True

    def _clear(self) -> None:
        if self._is_written:
            self._mark(LeftOutOf.NOTHING)  # before its values are gone
            self.workspace.buffers.clear(local_buffers.LEFT_OUT)
            self._is_written = False

    def _mark(self, header: bytes) -> None:
        start = FLOAT_BYTES * self.workspace.plan.layout.numel
        self.workspace.buffers.raw(local_buffers.LEFT_OUT)[start : start + LEFT_OUT_BYTES] = header
