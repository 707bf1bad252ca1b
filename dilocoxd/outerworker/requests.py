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
from dilocoxd.outerworker.journal import UpdateJournal
from dilocoxd.outerworker.owed_work import Returning
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.results.again import AgainReducer
from dilocoxd.outerworker.shared_state import SharedState
from dilocoxd.outerworker.snapshot import SnapshotWriter, load_snapshot
from dilocoxd.outerworker.workspace import Workspace
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
    StateReady,
    WriteSnapshot,
)
from dilocoxd.wire.local.worker import WorkerFailed

_DETAIL_CHARACTERS_MAX = 1000


class Worker:
    """The outer worker's behaviour, once the buffers are attached."""

    def __init__(self, plan: OuterPlan, buffers: MappedBuffers, report: Reporter) -> None:
        workspace = Workspace(plan, buffers, UpdateJournal(buffers.journal, plan.sha256), report)
        self._workspace = workspace
        self._snapshots = SnapshotWriter(workspace)
        self._state = SharedState(workspace, self._snapshots)
        self._contribution = SiteContribution(workspace)
        self._site = SiteFile(workspace)
        self._answers: dict[type, Callable[[Any], Any | None]] = {
            OpenState: self._open,
            LoadState: self._load,
            ApplyResult: self._apply,
            CopyBase: self._state.copy_base,
            FormContribution: self._contribution.form,
            Reduce: self._contribution.reduce,
            ReduceAgain: AgainReducer(workspace).handle,
            PreparePass: self._prepare_pass,
            Settle: self._contribution.settle,
            WriteSnapshot: self._snapshots.start,
            SaveSite: self._site.save,
            RestoreSite: self._site.restore,
            ReturnWork: Returning(workspace).handle,
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

    def _apply(self, request: ApplyResult) -> StateReady:
        started = time.monotonic()
        self._state.apply(request)
        return self._state.ready(request.request, started)

    def _load(self, request: LoadState) -> StateReady:
        started = time.monotonic()
        if not request.directory:
            self._state.genesis()
        else:
            # A peer's files: their index has right hashes whatever they hold.
            try:
                index = load_snapshot(self._workspace, Path(request.directory), self._state.begin_replace)
                self._state.finish_replace(index.round, index)
            except RequestFailed:
                raise
            except (WorkerError, KeyError) as error:
                raise RequestFailed("corrupt_snapshot", f"{error}; use another snapshot") from error
        return self._state.ready(request.request, started)

    def _prepare_pass(self, request: PreparePass) -> PassReady:
        """Behind the last pass there is nothing to fill: then this checks that all results decode, before a vote."""
        if request.pass_index != self._workspace.plan.num_passes:
            return self._contribution.prepare_pass(request)
        self._state.check_result()
        return PassReady(request.request, request.pass_index, ())
