"""Adds kept work to the error feedback, or takes it out again: what is owed is made good here.

Which work, and when: machines/phase/owed_work.py and repayment.py.

While it was in the chain FEEDBACK held d - counted; with that added it holds d again (outer/feedback.py says how
exactly). All is linear: whatever was added to FEEDBACK or sent since then stays where it is.
"""

from __future__ import annotations

from pathlib import Path

from dilocoxd.errors import StoreError, WireError
from dilocoxd.outer.passes import SegmentPass, add_counted_, counted, subtract_counted_
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import Saved, Update
from dilocoxd.outerworker.results.kept import KeptShare, open_kept
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.wire.local.outer_parts import PartReady
from dilocoxd.wire.local.outer_worker import ReturnWork, WorkReturned


class Returning:
    """ReturnWork."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def handle(self, request: ReturnWork) -> WorkReturned | PartReady:
        """FEEDBACK <- FEEDBACK +- what was counted of the contribution. Repeated: no effect.

        Raises RequestFailed (store, bad_payload) with nothing changed when the file is not usable.
        """
        workspace, state = self._workspace, self._workspace.state
        answer = PartReady(request.request) if request.is_check else WorkReturned(request.request, request.phase)
        if state.returned_operation == request.operation:
            return answer
        is_resumed = state.operation == Update.RETURN and state.argument == request.operation
        workspace.require(is_resumed or state.operation == Update.NONE, "another update was interrupted; ask it first")
        try:
            with open_kept(workspace, Path(request.path), request.phase) as kept:
                # What it carried is said in the terms of the entry that it was given to.
                workspace.plan.transform.tune(kept.round, kept.lowrank_r)
                self._check(kept)
                if request.is_check:
                    return answer
                if not is_resumed:
                    workspace.begin(Update.RETURN, request.operation)
                self._move(kept, is_withdrawn=request.is_withdrawn)
        except (OSError, StoreError) as error:
            raise RequestFailed("store", f"the work of phase {request.phase}: {error}") from error
        finally:
            if workspace.state.is_loaded:
                workspace.tune()
        workspace.journal.write(operation=Update.NONE, returned_operation=request.operation)
        return answer

    def _check(self, kept: KeptShare) -> None:
        """It was hashed when it was formed, but results came from others."""
        workspace = self._workspace
        workspace.report.begin("check", len(workspace.plan.segments))
        for segment in workspace.plan.segments:
            try:
                counted(kept.at(segment), kept.own(segment), kept.factor(segment), kept.center(segment))
            except WireError as error:
                raise RequestFailed("bad_payload", f"kept segment {segment.index}: {error}") from error
            workspace.report.step(segment.index)

    def _move(self, kept: KeptShare, *, is_withdrawn: bool) -> None:
        workspace = self._workspace
        workspace.report.begin("return", len(workspace.plan.segments))
        move = subtract_counted_ if is_withdrawn else add_counted_
        for segment in workspace.plan.segments[workspace.state.position :]:
            share = (kept.own(segment), workspace.feedback_of(segment), kept.factor(segment), kept.center(segment))
            at = kept.at(segment)

            def change(at: SegmentPass = at, share: tuple = share) -> dict[str, object]:  # type: ignore[type-arg]
                move(at, *share)
                return {}

            workspace.transact(Saved.FEEDBACK, segment, change)
            workspace.report.step(segment.index)
