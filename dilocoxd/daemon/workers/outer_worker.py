"""Keeps the outer worker running and asks it things: one answer per request, silence is a hang, a death is a restart.

The buffers belong to the daemon, so a restarted worker finds its state in them (docs/internals.md section 4).
"""

import asyncio
import dataclasses
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.errands import Errands
from dilocoxd.daemon.workers.forked import ForkLaunch, PlaceLost, WorkerPlace, Workers
from dilocoxd.daemon.workers.local_server import Connection
from dilocoxd.daemon.workers.supervisor import nap
from dilocoxd.errors import ConfigError, WireError, WorkerError
from dilocoxd.ipc.client import LINK_LOST_STATUS
from dilocoxd.ipc.keep_alive import RestartBudget, keep_alive
from dilocoxd.ipc.process_tree import is_descendant
from dilocoxd.wire.local import inlets, outer_parts, outer_worker as local, uploads, worker as local_worker
from dilocoxd.wire.local.node import NODE_FAULTS

Answer = (
    local.StateReady
    | local.BaseCopied
    | local.ContributionFormed
    | local.SegmentReduced
    | local.ReducedAgain
    | local.PassReady
    | local.Settled
    | local.SnapshotSaved
    | local.SiteDone
    | local.WorkReturned
    | outer_parts.PartReady
    | outer_parts.PartStepped
    | outer_parts.PartAdopted
    | outer_parts.SnapshotHashed
)
ANSWERS: Final = Answer.__args__
STOP_GRACE_S: Final = 5.0


class RequestRefused(WorkerError):
    """The outer worker says that it cannot do this (WorkerFailed)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class OuterListener(Protocol):
    """Who is told. Called on the loop, must not block."""

    def outer_described(self, description: local.Described) -> None: ...

    def outer_started(self, state: local.StateReady) -> None: ...

    def outer_lost(self, reason: str) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class OuterSettings:
    """Times and how to launch; `launch(generation)` gives a fresh mark."""

    launch: Callable[[int], ForkLaunch]
    budget: RestartBudget
    start_timeout_s: float
    silence_max_s: float


def first_error(group: BaseExceptionGroup[Any]) -> BaseException:
    """The first error that is not a group itself."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Session:
    """One connection of one generation."""

    def __init__(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.described: asyncio.Future[local.Described] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.pending: dict[int, asyncio.Future[Any]] = {}
        self.errands = Errands(connection.send)
        self.last_sign = loop.time()
        self.fault = ""
        """Of the node that it runs on."""
        self._number = 0

    def on_message(self, message: Any) -> None:
        if isinstance(message, (*uploads.FROM_NODE, *inlets.FROM_INLET)):  # no sign of life of the part
            self.errands.on_message(message)
            return
        self.last_sign = asyncio.get_running_loop().time()
        match message:
            case local.Described():
                if not self.described.done():
                    self.described.set_result(message)
            case local_worker.WorkerAlive():
                pass
            case local_worker.WorkerFailed(0, kind, detail) if kind in NODE_FAULTS:
                self.fault = detail
                self.on_ended(detail)
            case local_worker.WorkerFailed():
                future = self.pending.get(message.request)
                if future is not None and not future.done():
                    future.set_exception(RequestRefused(message.kind, message.detail))
            case _ if isinstance(message, ANSWERS):
                future = self.pending.get(message.request)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                raise WireError("unexpected_message", f"{type(message).__name__} from the outer worker")

    def on_ended(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
            self.errands.end(reason)
        for future in (self.described, *self.pending.values()):
            if not future.done():
                future.set_exception(WorkerError(f"the outer worker is gone: {reason}"))
                future.exception()  # nobody need be waiting any more

    async def ask(self, request: Any) -> Any:
        self._number += 1
        number = self._number
        loop = asyncio.get_running_loop()
        if self.ended.done():
            raise WorkerError(f"the outer worker is gone: {self.ended.result()}")
        if not self.pending:
            self.last_sign = loop.time()
        future: asyncio.Future[Any] = loop.create_future()
        self.pending[number] = future
        try:
            self.connection.send(dataclasses.replace(request, request=number))
            return await future
        finally:
            del self.pending[number]


class OuterWorker:
    """`run` keeps it alive; `ask` is for everybody."""

    def __init__(self, settings: OuterSettings, place: WorkerPlace, buffers: Buffers, listener: OuterListener) -> None:
        self.pid = 0
        self.generation = 0
        self.restarts = settings.budget
        self._settings = settings
        self._place = place
        self._buffers = buffers
        self._listener = listener
        self._joined: asyncio.Future[_Session] | None = None
        self._session: _Session | None = None
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when `run` is over."""
        self.on_attached: Callable[[Errands], None] = lambda errands: None
        """Told of each life before it is asked anything: what its node is to know first."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the process that runs."""
        return (self.pid,) if self.pid else ()

    @property
    def where(self) -> str:
        """See WorkerPlace."""
        return self._place.where

    @property
    def is_up(self) -> bool:
        """It has its buffers and answers requests."""
        return self._session is not None and not self._session.ended.done()

    @property
    def errands(self) -> Errands | None:
        """Of the node that it runs on, if it does; None: it does not run."""
        return self._session.errands if self._session is not None and self.is_up else None

    def admit(self, hello: local_worker.WorkerHello, connection: Connection) -> _Session | None:
        """Let the worker in that we started last, once."""
        joined = self._joined
        if joined is None or joined.done() or hello.generation != self.generation:
            return None
        if not is_descendant(connection.pid, os.getpid()):
            return None
        session = _Session(connection)
        joined.set_result(session)
        return session

    async def ask(self, request: Any, *, timeout_s: float) -> Any:
        """The answer, from this worker, or from the next one if none runs now.

        Raises RequestRefused, WorkerError when it dies meanwhile or `timeout_s` is over.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_up:
                    self._changed.clear()
                    await self._changed.wait()
                assert self._session is not None
                return await self._session.ask(request)
        except TimeoutError as error:
            raise WorkerError(
                f"the outer worker did not answer {type(request).__name__} within {timeout_s:.0f} s"
            ) from error

    async def ask_present(self, request: Any) -> Any:
        """The answer of the worker that runs now; WorkerError at once if none does. No time-out but silence."""
        if self._session is None:
            raise WorkerError("the outer worker is starting")
        return await self._session.ask(request)

    async def run(self) -> None:
        """Until `stop`. Raises WorkerError when the restart budget is spent, ConfigError when it refuses to run."""
        try:
            await keep_alive(
                "the outer worker (logs/outer.log)", self._one_life, self._lost, self.restarts, self._stopping
            )
        finally:
            self.ended.set()

    @property
    def _has_joined(self) -> bool:
        joined = self._joined
        return joined is not None and joined.done() and not joined.cancelled() and joined.exception() is None

    def _lost(self, reason: str) -> None:
        if not self._stopping.is_set():
            self._listener.outer_lost(reason)
            self.pid = 0

    async def _one_life(self) -> str:
        self.generation += 1
        self._joined = asyncio.get_running_loop().create_future()
        try:
            workers = await self._place.start(self._settings.launch(self.generation))
        except PlaceLost:
            raise
        except WorkerError as error:
            return str(error)
        (self.pid,) = workers.pids
        reason = ""
        try:
            async with asyncio.TaskGroup() as group:
                exit_watch = group.create_task(self._watch_exit(workers, self._joined), name="outer exit")
                try:
                    reason = await self._serve(self._joined)
                finally:
                    exit_watch.cancel()
        except* WorkerError as errors:
            reason = str(first_error(errors))
        finally:
            self._session = None
            is_told = self._stopping.is_set() and self._has_joined  # one that never came has nothing to save
            told = await workers.end(grace_s=STOP_GRACE_S if is_told else 0.0)
        if ConfigError.exit_code in workers.statuses:
            raise ConfigError("the outer worker refuses the configuration; see the last line of logs/outer.log")
        fault = self._joined.result().fault if self._has_joined else ""
        if fault:
            self._place.note_fault(fault)
        if fault or LINK_LOST_STATUS in workers.statuses:
            self.restarts.excuse()
        return f"{fault or reason} ({told})"

    async def _watch_exit(self, workers: Workers, joined: asyncio.Future[_Session]) -> None:
        await workers.first_exit()
        if not joined.done():
            joined.set_exception(WorkerError("it ended before it said hello"))
        elif joined.exception() is None:
            joined.result().on_ended("it ended")

    async def _serve(self, joined: asyncio.Future[_Session]) -> str:
        """From hello to the end of the connection; why it ended. Raises WorkerError."""
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                session = await joined
                description = await session.described
        except TimeoutError as error:
            raise WorkerError(f"it said nothing for {self._settings.start_timeout_s:.0f} s after its start") from error
        self._buffers.provide(description.buffers)
        self._listener.outer_described(description)
        names = tuple(buffer.name for buffer in description.buffers)
        descriptors, sizes = self._buffers.descriptors(names)
        session.connection.send(local_worker.Attach(names, tuple(sizes)), descriptors)
        self._place.note_attached()
        self.on_attached(session.errands)
        async with asyncio.TaskGroup() as group:
            silence = group.create_task(self._watch_silence(session), name="outer silence")
            try:
                state = await session.ask(local.OpenState(0))
                self._session = session
                self._changed.set()
                self._listener.outer_started(state)
                return await asyncio.shield(session.ended)
            finally:
                silence.cancel()

    async def _watch_silence(self, session: _Session) -> None:
        """End the session when it owes an answer and says nothing for too long."""
        loop = asyncio.get_running_loop()
        limit = self._settings.silence_max_s
        while True:
            lost_s = await nap(limit / 10)
            session.last_sign += lost_s  # time that we lost ourselves is not its silence
            silence = loop.time() - session.last_sign
            if session.pending and silence > limit:
                session.on_ended(f"it said nothing for {silence:.0f} s while it owed an answer")
                return

    def stop(self) -> None:
        """Ask it to end by itself; `run` returns when it has."""
        self._stopping.set()
        if self._joined is None:
            return
        if not self._joined.done():
            self._joined.set_exception(WorkerError("the site stops"))
            self._joined.exception()  # nobody waits before there is a process
        elif self._has_joined and not self._joined.result().ended.done():  # else it is being killed
            self._joined.result().connection.send(local_worker.Stop())  # whether its state is open already or not
