"""Answers the daemon's requests, one at a time, in order. Each request type has one branch here; leaves do the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dilocoxd.errors import WorkerError
from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.contribution import SiteContribution
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.feedback_file import SiteFile
from dilocoxd.outerworker.journal import NO_PHASE, UpdateJournal
from dilocoxd.outerworker.owed_work import Returning
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.results.again import AgainReducer
from dilocoxd.outerworker.results.left_out import LeavingOut
from dilocoxd.outerworker.shared_state import SharedState
from dilocoxd.outerworker.snapshot import SnapshotWriter, checked_snapshot, fill_from_snapshot, held_of_snapshot
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.wire.local.buffers import FEEDBACK, OWNER_FEEDBACK
from dilocoxd.wire.local.outer_parts import AdoptState, HashSnapshot, PartAdopted, PartReady, PartStepped
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    CopyBase,
    FormContribution,
    LoadState,
    OpenState,
    PassReady,
    PreparePass,
    Reduce,
    ReduceAgain,
    RestoreSite,
    ReturnWork,
    SaveSite,
    Settle,
    Settled,
    StateReady,
    WriteSnapshot,
)
from dilocoxd.wire.local.worker import WorkerFailed

_DETAIL_CHARACTERS_MAX = 1000
Outcome = StateReady | PartStepped | PartReady


class Worker:
    """The outer worker's behaviour, once the buffers are attached."""

    def __init__(self, plan: OuterPlan, buffers: MappedBuffers, report: Reporter) -> None:
        workspace = Workspace(plan, buffers, UpdateJournal(buffers.journal, plan.sha256), report)
        self._workspace = workspace
        self._snapshots = SnapshotWriter(workspace)
        self._state = SharedState(workspace, self._snapshots)
        self._contribution = SiteContribution(workspace)
        self._left_out = LeavingOut(workspace)
        self._site = SiteFile(workspace)
        self._checked_snapshot: Path | None = None
        """Whose hashes were found right, before it is loaded."""
        self._answers: dict[type, Callable[[Any], Any | None]] = {
            OpenState: self._open,
            LoadState: self._load,
            ApplyResult: self._apply,
            CopyBase: self._state.copy_base,
            FormContribution: self._contribution.form,
            Reduce: self._contribution.reduce,
            ReduceAgain: AgainReducer(workspace).handle,
            PreparePass: self._prepare_pass,
            Settle: self._settle,
            WriteSnapshot: self._snapshots.start,
            SaveSite: self._site.save,
            RestoreSite: self._site.restore,
            ReturnWork: Returning(workspace).handle,
            AdoptState: self._adopt,
            HashSnapshot: self._snapshots.hash_chunks,
        }

    def handle(self, request: Any) -> None:
        """Do one request and send its answer. Raises DaemonGone."""
        try:
            answer = self._answer(request)
        except RequestFailed as failure:
            answer = WorkerFailed(request.request, failure.kind, failure.detail[:_DETAIL_CHARACTERS_MAX])
        if answer is not None:
            self._workspace.report.send(answer)

    def finish(self) -> None:
        """Let what is being written end."""
        self._snapshots.finish()

    def _answer(self, request: Any) -> Any | None:
        answer = self._answers.get(type(request))
        if answer is None:
            raise AssertionError(f"the daemon sent {type(request).__name__} to the outer worker")
        return answer(request)

    def _open(self, request: OpenState) -> StateReady:
        started = time.monotonic()
        self._workspace.undo_torn_step()
        self._state.resume()
        self._contribution.resume()
        return self._state.ready(request.request, started)

    def _apply(self, request: ApplyResult) -> Outcome:
        started = time.monotonic()
        if request.is_check:
            self._state.check_entry(request)
            return PartReady(request.request)
        self._state.apply(request)
        return self._outcome(request.request, started)

    def _outcome(self, request: int, started: float) -> Outcome:
        """One of several parts cannot say that there is a new state."""
        is_whole = self._workspace.plan.part.is_whole
        return self._state.ready(request, started) if is_whole else self._state.stepped(request, started)

    def _adopt(self, request: AdoptState) -> PartAdopted:
        started = time.monotonic()
        self._state.adopt(request)
        header = self._workspace.memory.digested_header(request.round)
        return PartAdopted(request.request, header, self._state.ready(request.request, started))

    def _load(self, request: LoadState) -> Outcome:
        started = time.monotonic()
        if request.forgets_feedback and not request.is_check:
            self._workspace.buffers.clear(OWNER_FEEDBACK)
            if self._workspace.state.formed_phase == NO_PHASE:  # else it holds what is in flight until that is settled
                self._workspace.buffers.clear(FEEDBACK)
        if not request.is_check:
            self._left_out.forget()  # another state of the same number may come
        held: tuple[tuple[int, int], ...] = ()
        if request.directory:
            held = self._load_from(Path(request.directory), is_check=request.is_check)
        elif request.is_check:
            self._state.require_genesis()
        else:
            self._state.genesis()
        return PartReady(request.request, held) if request.is_check else self._outcome(request.request, started)

    def _load_from(self, directory: Path, *, is_check: bool) -> tuple[tuple[int, int], ...]:
        """What this machine has of each file."""
        # A peer's files: their index has right hashes whatever they hold.
        try:
            is_known = self._checked_snapshot == directory and not is_check
            index = checked_snapshot(self._workspace, directory, is_known=is_known)
            self._checked_snapshot = directory if is_check else None
            if not is_check:
                fill_from_snapshot(self._workspace, directory, index, self._state.begin_replace)
                self._state.finish_replace(index.round, index)
            return held_of_snapshot(self._workspace, directory, index) if is_check else ()
        except RequestFailed:
            raise
        except (WorkerError, KeyError) as error:
            raise RequestFailed("corrupt_snapshot", f"{error}; use another snapshot") from error

    def _settle(self, request: Settle) -> Settled:
        self._left_out.note(request)  # while INBOX has the shares
        return self._contribution.settle(request)

    def _prepare_pass(self, request: PreparePass) -> PassReady:
        """Behind the last pass there is nothing to fill: then this checks that all results decode, before a vote."""
        if request.pass_index != self._workspace.plan.num_passes:
            return self._contribution.prepare_pass(request)
        self._state.check_result()
        return PassReady(request.request, request.pass_index, ())
