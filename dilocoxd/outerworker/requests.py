"""Answers the daemon's requests, one at a time, in order. Each request type has one branch here; leaves do the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dilocoxd.outerworker.buffers import Buffers
from dilocoxd.outerworker.contribution import SiteContribution
from dilocoxd.outerworker.core import Core
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import Journal
from dilocoxd.outerworker.plan import Plan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.returning import Returning
from dilocoxd.outerworker.shared_state import SharedState
from dilocoxd.outerworker.site_file import SiteFile
from dilocoxd.outerworker.snapshot import SnapshotWriter, load_snapshot
from dilocoxd.wire.local import (
    ApplyEntry,
    CopyBase,
    FormContribution,
    LoadState,
    OpenState,
    PassPrepared,
    PreparePass,
    Reduce,
    RestoreSite,
    ReturnWork,
    SaveSite,
    Settle,
    StateReady,
    WorkerFailed,
    WriteSnapshot,
)

_DETAIL_CHARACTERS_MAX = 1000


class Worker:
    """The outer worker's behaviour, once the buffers are attached."""

    def __init__(self, plan: Plan, buffers: Buffers, report: Reporter) -> None:
        core = Core(plan, buffers, Journal(buffers.journal, plan.sha256), report)
        self._core = core
        self._snapshots = SnapshotWriter(core)
        self._state = SharedState(core, self._snapshots)
        self._contribution = SiteContribution(core)
        self._site = SiteFile(core)
        self._answers: dict[type, Callable[[Any], Any | None]] = {
            OpenState: self._open,
            LoadState: self._load,
            ApplyEntry: self._apply,
            CopyBase: self._state.copy_base,
            FormContribution: self._contribution.form,
            Reduce: self._contribution.reduce,
            PreparePass: self._prepare_pass,
            Settle: self._contribution.settle,
            WriteSnapshot: self._snapshots.start,
            SaveSite: self._site.save,
            RestoreSite: self._site.restore,
            ReturnWork: Returning(core).handle,
        }

    def handle(self, request: Any) -> None:
        """Do one request and send its answer. Raises DaemonGone."""
        try:
            answer = self._answer(request)
        except RequestFailed as failure:
            answer = WorkerFailed(request.request, failure.kind, failure.detail[:_DETAIL_CHARACTERS_MAX])
        if answer is not None:
            self._core.report.send(answer)

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
        self._core.undo_torn_step()
        self._state.resume()
        self._contribution.resume()
        return self._state.ready(request.request, started)

    def _apply(self, request: ApplyEntry) -> StateReady:
        started = time.monotonic()
        self._state.apply(request)
        return self._state.ready(request.request, started)

    def _load(self, request: LoadState) -> StateReady:
        started = time.monotonic()
        if not request.directory:
            self._state.genesis()
        else:
            index = load_snapshot(self._core, Path(request.directory), self._state.begin_replace)
            self._state.finish_replace(index.round, bytes.fromhex(index.state_digest))
        return self._state.ready(request.request, started)

    def _prepare_pass(self, request: PreparePass) -> PassPrepared:
        """Behind the last pass there is nothing to fill: then this checks that all results decode, before a vote."""
        if request.pass_index != self._core.plan.num_passes:
            return self._contribution.prepare_pass(request)
        self._state.check_result()
        return PassPrepared(request.request, request.pass_index, ())
