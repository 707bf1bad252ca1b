"""The site: drives the phase machine, keeps its workers running, and offers `site_interface.Site` to the daemon.

Only I/O is here. What happens next is decided in rounds/phases.py; commands are carried out one after the other.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, assert_never

from dilocoxd.daemon.buffers import Buffers
from dilocoxd.daemon.local_server import SOCKET_PATH_BYTES_MAX, Connection, LocalServer, WorkerHandler
from dilocoxd.daemon.loop_watch import watch_loop_lag
from dilocoxd.daemon.outer_worker import OuterWorker, RequestRefused
from dilocoxd.daemon.site_interface import (
    BadResult,
    BadShare,
    ChainView,
    CommittedEntry,
    ContributionDropped,
    ContributionOffered,
    ContributionSettled,
    LoopLagged,
    PhaseExtended,
    SiteEvent,
    SiteLayout,
    SiteSettings,
    SiteStatus,
    WorkerChanged,
    WorkerState,
)
from dilocoxd.daemon.site_launch import outer_settings, phase_settings, trainer_settings
from dilocoxd.daemon.site_progress import SiteProgress
from dilocoxd.daemon.site_record import load_record, save_record
from dilocoxd.daemon.site_status import site_status
from dilocoxd.daemon.supervisor import mark_this_process
from dilocoxd.daemon.trainer import Trainer
from dilocoxd.errors import WorkerError
from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.phase_trainer import boundary_obstacle
from dilocoxd.rounds.phases import PhaseMachine
from dilocoxd.wire import local

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
        self._machine = PhaseMachine(phase_settings(settings), load_record(settings.run_directory))
        self._inbox: asyncio.Queue[ev.PhaseEvent] = asyncio.Queue(INBOX_MAX)
        self._orders: dict[int, asyncio.Future[Any]] = {}
        self._order_number = 0
        self._num_handled = 0
        self._layout: SiteLayout | None = None
        self._described = asyncio.Event()
        self._left = asyncio.Event()
        self._over = asyncio.Event()
        mark = os.environ.get(TREE_VARIABLE) or mark_this_process()
        self._private_directory: Path | None = None
        socket_path = self._socket_path()
        self.outer = OuterWorker(outer_settings(settings, mark, socket_path), self.buffers, self)
        self.trainer = Trainer(trainer_settings(settings, mark, socket_path), self.buffers, self)
        self._server = LocalServer(socket_path, self._admit)

    def _socket_path(self) -> Path:
        path = self._settings.run_directory / "sock"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            self._private_directory = Path(tempfile.mkdtemp(prefix="dilocoxd-"))
            path = self._private_directory / "sock"
        return path

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """See site_interface.Site. WorkerError and ConfigError come in an exception group."""
        self._server.listen()
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._server.serve(), name="local server"),
                    group.create_task(self._drive(group), name="site driver"),
                    group.create_task(watch_loop_lag(self._lagged, lag_max_s=LATE_MAX_S), name="loop lag"),
                ]
                group.create_task(self.outer.run(), name="outer worker")
                await self._described.wait()
                if self._settings.is_training:
                    group.create_task(self.trainer.run(), name="trainers")
                await self._left.wait()
                self.trainer.stop()
                self.outer.stop()
                await self._until_workers_ended(helpers)
        finally:
            self._end()

    async def _until_workers_ended(self, helpers: list[asyncio.Task[None]]) -> None:
        await self.outer.ended.wait()
        if self._settings.is_training:
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

    def _admit(self, hello: local.WorkerHello, connection: Connection) -> WorkerHandler | None:
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
                event = ev.TimeLost(late_s) if late_s > LATE_MAX_S else ev.DeadlineReached()
            self._num_handled += 1
            for command in machine.handle(event, now=Monotonic(clock())):
                await self._execute(command, group)
            started = self.progress.phase_started(machine.state)
            if started is not None:
                self._emit(started)

    async def _execute(self, command: ev.PhaseCommand, group: asyncio.TaskGroup) -> None:
        match command:
            case ev.RunOuter(number, request):
                group.create_task(self._run_outer(number, request), name=type(request).__name__)
            case ev.TellTrainer(message):
                self._tell(message)
            case ev.PersistRecord(record):
                await asyncio.to_thread(save_record, self._settings.run_directory, record)
            case ev.OfferContribution():
                self._emit(_offered(command))
            case ev.DropContribution(phase, reason):
                self._emit(ContributionDropped(phase, reason))
            case ev.FinishOrder() | ev.RefuseOrder():
                self._end_order(command)
            case ev.RestartTrainer(generation, reason):
                self.trainer.restart(generation, reason)
            case ev.FailSite(reason):
                raise WorkerError(reason)
            case ev.FinishLeaving():
                self._left.set()
            case _:
                assert_never(command)

    def _tell(self, message: ev.TrainerCommand) -> None:
        self.trainer.tell(message)
        if isinstance(message, local.Extend):
            state = self._machine.state
            self._emit(PhaseExtended(state.trainer.phase, message.inner_steps, boundary_obstacle(state)))

    async def _run_outer(self, number: int, request: ev.OuterRequest) -> None:
        try:
            answer = await self.outer.ask_present(request)
        except RequestRefused as refused:
            self._post(ev.OperationRefused(number, refused.kind, refused.detail))
        except WorkerError:
            return  # it died; the machine asks again when it is back
        else:
            if isinstance(request, local.Settle):
                self._emit(ContributionSettled(request.phase, RoundIndex(request.round), request.is_included))
            self._post(ev.OperationDone(number, answer))

    def _lagged(self, seconds: float, doing: str) -> None:
        self._emit(LoopLagged(seconds, doing))

    def _post(self, event: ev.PhaseEvent) -> None:
        if self._inbox.full() and isinstance(event, ev.TrainerSaid) and isinstance(event.message, local.StepDone):
            return
        self._inbox.put_nowait(event)

    # --- what the workers say -----------------------------------------------------------------------------------------

    def outer_described(self, description: local.Described) -> None:
        """Sizes are known, buffers exist."""
        slots = self.buffers.size(local.INBOX) // self.buffers.size(local.OUTBOX)
        tables = {each.lowrank_r: each.payload_bytes for each in description.payloads}
        self._layout = SiteLayout(description.numel, tables, slots)
        self._described.set()

    def outer_started(self, state: local.StateReady) -> None:
        """Attached; its journal is in order."""
        self._tell_outer("running", "")
        self._post(ev.OuterStarted(state))

    def outer_lost(self, reason: str) -> None:
        """Dead and buried."""
        self._tell_outer("lost", reason)
        self._post(ev.OuterLost())

    def trainer_starting(self, generation: int) -> None:
        """torchrun is about to start."""
        self.progress.new_generation()
        self._tell_trainer("starting", "")

    def trainer_connected(self, generation: int) -> None:
        """All ranks are ready."""
        self._tell_trainer("running", "")
        self._post(ev.TrainerConnected(generation))

    def trainer_said(self, generation: int, message: ev.TrainerMessage) -> None:
        """A report."""
        event = self.progress.take(message)
        if event is not None:
            self._emit(event)
        self._post(ev.TrainerSaid(generation, message))

    def trainer_lost(self, generation: int, reason: str) -> None:
        """The whole generation is dead."""
        self._tell_trainer("stopped" if self.trainer.is_over else "lost", reason)
        self._post(ev.TrainerLost(generation))

    def _tell_outer(self, state: WorkerState, reason: str) -> None:
        outer, budget = self.outer, self.outer.restarts
        self._emit(WorkerChanged("outer", state, budget.total, reason, outer.pid, outer.generation, budget.left))

    def _tell_trainer(self, state: WorkerState, reason: str) -> None:
        trainer, budget = self.trainer, self.trainer.restarts
        pid = trainer.pids[0] if trainer.pids else 0
        self._emit(WorkerChanged("trainer", state, budget.total, reason, pid, trainer.number, budget.left))

    # --- calls of the daemon (site_interface.Site) --------------------------------------------------------------------

    async def ready(self) -> SiteLayout:
        """See Site."""
        await self._described.wait()
        if self._layout is None:
            raise WorkerError("the site has stopped")
        return self._layout

    async def load_state(
        self, directory: str, *, settles: PhaseId | None = None, is_included: bool = False
    ) -> local.StateReady:
        """See Site."""
        answer = await self._ordered(lambda order: ev.LoadOrdered(order, directory, settles, is_included))
        assert isinstance(answer, local.StateReady)
        return answer

    async def apply_entry(self, committed: CommittedEntry) -> local.StateReady:
        """See Site."""
        fields = {name: getattr(committed, name) for name in CommittedEntry.__slots__}
        answer = await self._ordered(lambda order: ev.EntryCommitted(order=order, **fields))
        assert isinstance(answer, local.StateReady)
        return answer

    async def abandon_contribution(self, phase: PhaseId, *, is_voted: bool) -> None:
        """See Site."""
        await self._ordered(lambda order: ev.ContributionAbandoned(order, phase, is_voted))

    async def begin(self, chain: ChainView) -> None:
        """See Site."""
        height = RoundIndex(chain.height)
        begun = (chain.newest_own_phase, chain.own_phases, chain.kept_phases)
        await self._ordered(lambda order: ev.TrainingBegun(order, height, *begun))

    async def move_work(self, phase: PhaseId, *, is_withdrawn: bool) -> bool:
        """See Site."""
        return await self._ordered(lambda order: ev.WorkMoved(order, phase, is_withdrawn)) is not None

    def pause(self, reason: str) -> None:
        """See Site."""
        self._post(ev.PauseOrdered(reason))

    def resume(self) -> None:
        """See Site."""
        self._post(ev.ResumeOrdered())

    def beat(self) -> int:
        """See Site."""
        if not self._inbox.full():
            self._inbox.put_nowait(ev.DeadlineReached())  # before the deadline it changes nothing
        return self._num_handled

    def others_due(self, at: float | None, step_seconds: tuple[float, ...] = ()) -> None:
        """See Site."""
        self._post(ev.OthersDue(None if at is None else Monotonic(at), step_seconds))

    async def reduce(
        self,
        pass_index: int,
        segment: int,
        shares: tuple[local.Share, ...],
        lowrank_r: int,
        *,
        timeout_s: float = 120.0,
    ) -> local.Reduced:
        """See Site."""
        try:
            answer = await self._ask_again(local.Reduce(0, pass_index, segment, shares, lowrank_r), timeout_s)
        except RequestRefused as refused:
            if refused.kind == "bad_payload" and refused.detail.lstrip("-").isdigit():
                raise BadShare(int(refused.detail), f"segment {segment}") from refused
            raise
        assert isinstance(answer, local.Reduced)
        return answer

    async def prepare_pass(self, pass_index: int, lowrank_r: int, *, timeout_s: float = 120.0) -> local.PassPrepared:
        """See Site."""
        try:
            answer = await self._ask_again(local.PreparePass(0, pass_index, lowrank_r), timeout_s)
        except RequestRefused as refused:
            named = re.match(r"result segment (\d+): ", refused.detail)
            if refused.kind == "bad_payload" and named is not None:
                raise BadResult(int(named[1]), refused.detail[named.end() :]) from refused
            raise
        assert isinstance(answer, local.PassPrepared)
        return answer

    async def write_snapshot(self, directory: str, *, timeout_s: float = 600.0) -> local.SnapshotWritten:
        """See Site."""
        answer = await self._ask_again(local.WriteSnapshot(0, directory), timeout_s)
        assert isinstance(answer, local.SnapshotWritten)
        return answer

    async def leave(self) -> None:
        """See Site."""
        self._post(ev.LeaveOrdered())
        await self._over.wait()

    def status(self) -> SiteStatus:
        """See Site."""
        return site_status(self._machine, self.progress, self.outer, self.trainer)

    # --- orders and questions -----------------------------------------------------------------------------------------

    async def _ordered(self, make: Callable[[int], ev.PhaseEvent]) -> ev.OuterAnswer | None:
        """Post the event and wait for its order to end; what was ordered happens even if the caller is cancelled."""
        if self._over.is_set():
            raise WorkerError("the site has stopped")
        self._order_number += 1
        order = self._order_number
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._orders[order] = future
        self._post(make(order))
        answer: ev.OuterAnswer | None = await asyncio.shield(future)
        return answer

    def _end_order(self, command: ev.FinishOrder | ev.RefuseOrder) -> None:
        future = self._orders.pop(command.order)
        if isinstance(command, ev.FinishOrder):
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


def _offered(command: ev.OfferContribution) -> ContributionOffered:
    formed = command.formed
    return ContributionOffered(
        phase=command.phase,
        base_round=command.base_round,
        inner_steps=command.inner_steps,
        tokens=command.tokens,
        lowrank_r=command.lowrank_r,
        segment_hashes=formed.segment_hashes,
        norm=formed.norm,
        residual_norm=formed.residual_norm,
        form_seconds=formed.seconds,
    )
