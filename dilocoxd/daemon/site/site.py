"""The site: drives the phase machine, keeps its workers running, and offers `interface.Site` to the daemon.

Only I/O is here: machines/phase/machine.py decides, its commands are carried out one after the other.
"""

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, assert_never

from dilocoxd.daemon.process.loop_watch import watch_loop_lag
from dilocoxd.daemon.site.interface import (
    LoopLagged,
    SiteEvent,
    SiteLayout,
    SiteSettings,
    SiteStatus,
    WorkerRole,
    WorkerState,
)
from dilocoxd.daemon.site.launch import fork_server_settings, make_outer, make_trainer, phase_settings, socket_place
from dilocoxd.daemon.site.nodes import SiteNodes
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.daemon.site.record import SiteRecordFile, overlapped
from dilocoxd.daemon.site.refusals import result_or_other, share_or_other
from dilocoxd.daemon.site.saved_feedback import read_saved
from dilocoxd.daemon.site.status import site_status, worker_changed
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.daemon.workers.local_server import Connection, LocalServer, WorkerHandler
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.daemon.workers.supervisor import mark_this_process
from dilocoxd.errors import WireError, WorkerError
from dilocoxd.ids import Monotonic, PhaseId
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.machine import PhaseMachine
from dilocoxd.machines.phase.settings import StartingPoint
from dilocoxd.machines.phase.trainers import boundary_obstacle
from dilocoxd.machines.phase.vocabulary import OuterAnswer, OuterRequest, TrainerCommand, TrainerMessage
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.cluster import FeedbackMissing
from dilocoxd.wire.local import (
    buffers as local_buffers,
    outer_worker as local,
    trainer as local_trainer,
    worker as local_worker,
)
from dilocoxd.wire.local.outer_worker import Share

INBOX_MAX: Final = 10_000
"""Beyond it reports of steps are dropped; anything else would mean that the driver is stuck: our bug."""
LATE_MAX_S: Final = 1.0
"""Waking up so late means that we stood still ourselves, and so, perhaps, did the trainers."""


class LocalSite:
    """Implements site_interface.Site, and listens to both kinds of workers."""

    def __init__(self, settings: SiteSettings, emit: Callable[[SiteEvent], None]) -> None:
        """Reads site.json. Raises StoreError."""
        self.buffers = Buffers()
        self.progress = SiteProgress()
        self._settings = settings
        self._emit = emit
        self._record = SiteRecordFile(settings.run_directory)
        self._machine = PhaseMachine(phase_settings(settings), self._record.durable, random.SystemRandom())
        self._inbox: asyncio.Queue[ev.PhaseEvent] = asyncio.Queue(INBOX_MAX)
        self._orders: dict[int, asyncio.Future[Any]] = {}
        self._order_number = 0
        self._num_handled = 0
        self._layout: SiteLayout | None = None
        self._described = asyncio.Event()
        self._left = asyncio.Event()
        self._over = asyncio.Event()
        mark = os.environ.get(TREE_VARIABLE) or mark_this_process()
        socket_path, self._private_directory = socket_place(settings.run_directory)
        self.fork_server = ForkServer(fork_server_settings(settings, mark), self)
        self.nodes = SiteNodes(settings, self.fork_server)
        self.outer = make_outer(settings, mark, socket_path, self.buffers, self, self.nodes)
        self.trainer = make_trainer(settings, mark, socket_path, self.buffers, self, self.nodes)
        self._server = LocalServer(socket_path, self._admit)

    async def run(self) -> None:
        """See site_interface.Site. WorkerError and ConfigError come in an exception group."""
        self._server.listen()
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._server.serve(), name="local server"),
                    group.create_task(self.fork_server.run(), name="fork server"),
                    group.create_task(self.nodes.serve(), name="door for nodes"),
                    group.create_task(self._drive(group), name="site driver"),
                    group.create_task(watch_loop_lag(self._lagged, lag_max_s=LATE_MAX_S), name="loop lag"),
                ]
                group.create_task(self.outer.run(), name="outer worker")
                await self._described.wait()
                if self._settings.is_training and not self._left.is_set():
                    group.create_task(self.trainer.run(), name="trainers")
                else:
                    self.trainer.ended.set()
                await self._left.wait()
                self.fork_server.stop()
                self.nodes.stop()
                self.trainer.stop()
                self.outer.stop()
                await self._until_workers_ended(helpers)
        finally:
            self._end()

    async def _until_workers_ended(self, helpers: list[asyncio.Task[None]]) -> None:
        await self.outer.ended.wait()
        await self.trainer.ended.wait()
        for helper in helpers:
            helper.cancel()

    def _end(self) -> None:
        for future in self._orders.values():
            if not future.done():
                future.set_exception(WorkerError("the site has stopped"))
                future.exception()
        for event in (self._left, self._described, self._over):
            event.set()
        self.buffers.close()
        if self._private_directory is not None:
            shutil.rmtree(self._private_directory, ignore_errors=True)

    def _admit(self, hello: local_worker.WorkerHello, connection: Connection) -> WorkerHandler | None:
        if hello.role == "outer":
            return self.outer.admit(hello, connection)
        return self.trainer.admit(hello, connection) if hello.role == "trainer" else None

    async def _drive(self, group: asyncio.TaskGroup) -> None:
        machine, clock = self._machine, asyncio.get_running_loop().time
        while True:
            deadline = machine.next_deadline()
            try:
                async with asyncio.timeout_at(deadline):
                    event = await self._inbox.get()
            except TimeoutError:
                late_s = clock() - deadline if deadline is not None else 0.0
                event = ev.TimeLost(late_s) if late_s > LATE_MAX_S else ev.PhaseDeadlineReached()
            self._num_handled += 1
            for command in overlapped(machine.handle(event, now=Monotonic(clock()))):
                await self._execute(command, group)
            started = self.progress.phase_started(machine.state)
            if started is not None:
                self._emit(started)

    async def _execute(self, command: cmd.PhaseCommand, group: asyncio.TaskGroup) -> None:
        match command:
            case cmd.RunOuter(number, request):
                group.create_task(self._run_outer(number, request), name=type(request).__name__)
            case cmd.TellTrainer(message):
                self._tell(message)
            case cmd.PersistRecord() | cmd.ForgetWork():
                await asyncio.to_thread(self._record.note, command)
            case cmd.OfferContribution() | cmd.TellSpoiled() | cmd.TellTrains():
                self._emit(command)
            case cmd.DropContribution(phase, reason):
                self._emit(catalogue.ContributionRefused(phase=phase, reason=reason))
            case cmd.FinishOrder() | cmd.RefuseOrder():
                self._end_order(command)
            case cmd.RestartTrainer(generation, reason):
                self.trainer.restart(generation, reason)
            case cmd.FailSite(reason):
                raise WorkerError(reason)
            case cmd.FinishLeaving():
                self._left.set()
                self._described.set()  # who leaves before the outer worker has come does not wait for it
            case _:
                assert_never(command)

    def _tell_change(self, role: WorkerRole, state: WorkerState, reason: str) -> None:
        worker = self.outer if role == "outer" else self.trainer if role == "trainer" else self.fork_server
        self._emit(worker_changed(role, worker, state, reason))

    def _tell(self, message: TrainerCommand) -> None:
        self.trainer.tell(self._settings.with_samples(message))
        if isinstance(message, local_trainer.Extend):
            state = self._machine.state
            phase, reason = state.trainer.present_phase.number, boundary_obstacle(state)
            self._emit(catalogue.PhaseExtended(phase=phase, inner_steps=message.inner_steps, reason=reason))

    async def _run_outer(self, number: int, request: OuterRequest) -> None:
        try:
            answer = await self.outer.ask_present(request)
        except RequestRefused as refused:
            self._post(ev.OperationRefused(number, refused.kind, refused.detail))
        except WorkerError:
            return  # it died; the machine asks again when it is back
        else:
            if isinstance(request, local.Settle):
                phase, at = request.phase, request.round
                self._emit(catalogue.ContributionSettled(phase=phase, round=at, is_included=request.is_included))
            if isinstance(request, local.RestoreSite) and answer.missing:
                self._emit(FeedbackMissing(values=answer.missing, reason=answer.detail))
            self._post(ev.OperationDone(number, answer))

    def _lagged(self, seconds: float, doing: str) -> None:
        self._emit(LoopLagged(seconds, doing))

    def _post(self, event: ev.PhaseEvent) -> None:
        if self._inbox.full() and isinstance(event, ev.TrainerSaid):
            if isinstance(event.message, local_trainer.StepDone | local_worker.WorkerAlive):
                return
            raise WireError("too_many_messages", "a trainer says more than the daemon can take in")
        self._inbox.put_nowait(event)

    # --- what the workers say -----------------------------------------------------------------------------------------

    def fork_server_warm(self) -> None:
        """Workers can be forked."""
        self._tell_change("fork_server", "running", "")

    def fork_server_lost(self, reason: str) -> None:
        """Dead, and its workers with it."""
        self._tell_change("fork_server", "lost", reason)

    def outer_described(self, description: local.Described) -> None:
        """Sizes are known, buffers exist."""
        slots = self.buffers.size(local_buffers.INBOX) // self.buffers.size(local_buffers.OUTBOX)
        tables = {each.lowrank_r: each.payload_bytes for each in description.payloads}
        self._layout = SiteLayout(description.numel, tables, slots, description.record_bytes, description.center_start)
        self._described.set()

    def outer_started(self, state: local.StateReady) -> None:
        """Attached; its journal is in order."""
        self._tell_change("outer", "running", "")
        self._post(ev.OuterStarted(state))

    def outer_lost(self, reason: str) -> None:
        """Dead and buried."""
        self._tell_change("outer", "lost", reason)
        self._post(ev.OuterLost())

    def trainer_starting(self, generation: int) -> None:
        """Its ranks are about to be forked."""
        self.progress.new_generation()
        self._tell_change("trainer", "starting", "")

    def trainer_connected(self, generation: int) -> None:
        """All ranks are ready."""
        self._tell_change("trainer", "running", "")
        self._post(ev.TrainerConnected(generation))

    def trainer_said(self, generation: int, message: TrainerMessage) -> None:
        """A report."""
        for event in self.progress.told_by(message):
            self._emit(event)
        self._post(ev.TrainerSaid(generation, message))

    def trainer_lost(self, generation: int, reason: str) -> None:
        """The whole generation is dead."""
        is_missed = self.trainer.is_kept and not self.trainer.is_over
        self._tell_change("trainer", "lost" if is_missed else "stopped", reason)
        self._post(ev.TrainerLost(generation))

    # --- calls of the daemon (site_interface.Site) --------------------------------------------------------------------

    async def ready(self) -> SiteLayout:
        """See Site."""
        await self._described.wait()
        if self._layout is None:
            raise WorkerError("the site has stopped")
        return self._layout

    async def load_state(
        self, directory: str, *, settles: PhaseId | None = None, is_included: bool = False, forgets: bool = False
    ) -> local.StateReady:
        """See Site."""
        answer = await self._ordered(lambda order: ev.LoadOrdered(order, directory, settles, is_included, forgets))
        assert isinstance(answer, local.StateReady)
        return answer

    async def apply_entry(self, committed: ev.CommittedEntry) -> local.StateReady:
        """See Site."""
        answer = await self._ordered(lambda order: ev.EntryCommitted(order, committed))
        assert isinstance(answer, local.StateReady)
        return answer

    async def abandon_contribution(self, phase: PhaseId, *, is_voted: bool) -> None:
        """See Site."""
        await self._ordered(lambda order: ev.ContributionAbandoned(order, phase, is_voted))

    async def begin(self, start: StartingPoint) -> None:
        """See Site."""
        saved = await asyncio.to_thread(read_saved, Path(self._machine.state.settings.feedback_path))
        await self._ordered(lambda order: ev.TrainingBegun(order, start, saved))

    async def move_work(self, phase: PhaseId, *, is_withdrawn: bool) -> bool:
        """See Site."""
        return await self._ordered(lambda order: ev.WorkMoved(order, phase, is_withdrawn)) is not None

    def pause(self, reason: str) -> None:
        """See Site."""
        self._post(ev.PauseOrdered(reason))

    def resume(self) -> None:
        """See Site."""
        self._post(ev.ResumeOrdered())

    def profile(self, steps: int) -> None:
        """See Site."""
        settings = self._settings
        away = settings.node_stages * settings.stage_ranks
        self._tell(self.progress.profiling.begin(steps, settings.run_directory, settings.num_stages, away))

    def beat(self) -> int:
        """See Site."""
        if not self._inbox.full():
            self._inbox.put_nowait(ev.PhaseDeadlineReached())  # before the deadline it changes nothing
        return self._num_handled

    def others_due(self, at: float | None, step_seconds: tuple[float, ...] = ()) -> None:
        """See Site."""
        self._post(ev.OthersDue(None if at is None else Monotonic(at), step_seconds))

    async def reduce(
        self, pass_index: int, segment: int, shares: tuple[Share, ...], lowrank_r: int, *, timeout_s: float = 120.0
    ) -> local.SegmentReduced:
        """See Site."""
        try:
            answer = await self._ask_again(local.Reduce(0, pass_index, segment, shares, lowrank_r), timeout_s)
        except RequestRefused as refused:
            raise share_or_other(refused, f"segment {segment}") from refused
        assert isinstance(answer, local.SegmentReduced)
        return answer

    async def reduce_again(self, directory: str, *, timeout_s: float = 60.0) -> local.ReducedAgain:
        """See Site."""
        try:
            answer = await self._ask_again(local.ReduceAgain(0, directory), timeout_s)
        except RequestRefused as refused:
            raise share_or_other(refused, directory) from refused
        assert isinstance(answer, local.ReducedAgain)
        return answer

    async def prepare_pass(self, pass_index: int, lowrank_r: int, *, timeout_s: float = 120.0) -> local.PassReady:
        """See Site."""
        try:
            answer = await self._ask_again(local.PreparePass(0, pass_index, lowrank_r), timeout_s)
        except RequestRefused as refused:
            raise result_or_other(refused) from refused
        assert isinstance(answer, local.PassReady)
        return answer

    async def write_snapshot(self, directory: str, *, timeout_s: float = 600.0) -> local.SnapshotSaved:
        """See Site."""
        answer = await self._ask_again(local.WriteSnapshot(0, directory), timeout_s)
        assert isinstance(answer, local.SnapshotSaved)
        return answer

    async def leave(self) -> None:
        """See Site."""
        self._post(ev.LeaveOrdered())
        await self._over.wait()

    def status(self) -> SiteStatus:
        """See Site."""
        return site_status(self._machine, self.progress, self.fork_server, self.outer, self.trainer, self.nodes.seen)

    # --- orders and questions -----------------------------------------------------------------------------------------

    async def _ordered(self, make: Callable[[int], ev.PhaseEvent]) -> OuterAnswer | None:
        """Post the event and wait for its order to end; what was ordered happens even if the caller is cancelled."""
        if self._over.is_set():
            raise WorkerError("the site has stopped")
        self._order_number += 1
        order = self._order_number
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._orders[order] = future
        self._post(make(order))
        answer: OuterAnswer | None = await asyncio.shield(future)
        return answer

    def _end_order(self, command: cmd.FinishOrder | cmd.RefuseOrder) -> None:
        future = self._orders.pop(command.order)
        if isinstance(command, cmd.FinishOrder):
            future.set_result(command.answer)
        else:
            future.set_exception(RequestRefused(command.kind, command.detail))
            future.exception()  # whoever ordered it may have been cancelled

    async def _ask_again(self, request: Any, timeout_s: float) -> Any:
        """Ask; when the outer worker dies meanwhile, ask the next one, within the same time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while True:
            try:
                return await self.outer.ask(request, timeout_s=max(0.0, deadline - clock()))
            except RequestRefused:
                raise
            except WorkerError:
                if self._over.is_set() or clock() >= deadline:
                    raise
