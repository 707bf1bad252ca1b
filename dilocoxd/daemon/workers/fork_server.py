"""Keeps the fork server of a site running (ipc/fork_server.py) and starts workers in it.

Torch is imported there once; a worker is a fork of it, running after some milliseconds. When the fork server dies, the
kernel ends its workers: their owners see the death of a worker and ask for the next one, which waits here until a new
fork server is warm. One that does not answer in time is killed, and so replaced.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.supervisor import Child, Launch, describe_exit, open_log
from dilocoxd.errors import WireError, WorkerError
from dilocoxd.ipc.keep_alive import RestartBudget, keep_alive
from dilocoxd.ipc.process_tree import kill_tree
from dilocoxd.wire.local import fork_server as wire

FORK_TIMEOUT_S: Final = 30.0
"""A fork takes milliseconds; a machine that swaps may need long."""
ANSWER_SLICES: Final = 20
STOP_GRACE_S: Final = 2.0

T = TypeVar("T")


class ForkServerListener(Protocol):
    """Who is told. Called on the loop, must not block."""

    def fork_server_warm(self) -> None: ...

    def fork_server_lost(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ForkServerSettings:
    """`launch(generation)` gives a fresh mark."""

    launch: Callable[[int], Launch]
    modules: tuple[str, ...]
    """Loaded before the first fork."""
    budget: RestartBudget
    warm_timeout_s: float


class ForkServer:
    """`run` keeps one going; `start` forks workers, from this one or from the next if none is warm."""

    def __init__(self, settings: ForkServerSettings, listener: ForkServerListener) -> None:
        self.pid = 0
        self.generation = 0
        self.restarts = settings.budget
        self._settings = settings
        self._listener = listener
        self._life: _Life | None = None
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def is_warm(self) -> bool:
        """A worker can be forked now."""
        return self._life is not None and not self._life.ended.done()

    async def start(self, launch: ForkLaunch) -> Workers:
        """The running processes of `launch`. Raises WorkerError; then none of them runs."""
        while not self._stopping.is_set():
            if self._life is not None and not self._life.ended.done():
                return await self._life.fork(launch)
            self._changed.clear()
            await self._changed.wait()
        raise WorkerError("the site stops")

    where = ""
    """See WorkerPlace."""

    def note_attached(self) -> None:
        """Buffers are in memory of this machine, for whatever is forked next."""

    def note_fault(self, why: str) -> None:
        """Only nodes have some; what is wrong with this machine is wrong with the daemon, too."""

    def stop(self) -> None:
        """No further worker is forked; those that run are left alone, and so is the fork server."""
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled, or the first death after `stop`. Raises WorkerError when the restart budget is spent."""
        await keep_alive(
            "the fork server (logs/fork-server.log)", self._one_life, self._lost, self.restarts, self._stopping
        )

    def _lost(self, reason: str) -> None:
        self._listener.fork_server_lost(reason)
        self.pid = 0

    async def _one_life(self) -> str:
        """Why it ended."""
        self.generation += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with ours:
            with theirs:
                child = await Child.start(self._settings.launch(self.generation), stdin=theirs.fileno())
            self.pid = child.pid
            life = _Life(ours)
            grace_s = 0.0
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._watch_exit(child, life), name="fork server exit"),
                        group.create_task(self._warm_up(life), name="fork server start"),
                    ]
                    reason = await asyncio.shield(life.ended)
                    for task in tasks:
                        task.cancel()
            except asyncio.CancelledError:
                grace_s = STOP_GRACE_S if self._life is not None else 0.0  # one that is not warm has forked nobody
                raise
            finally:
                self._life = None
                life.close("the site stops")
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_RDWR)
                status = await child.end(grace_s=grace_s)
        return f"{reason} ({describe_exit(status)})"

    async def _watch_exit(self, child: Child, life: "_Life") -> None:
        await child.wait()
        life.end("it ended")

    async def _warm_up(self, life: "_Life") -> None:
        life.send(wire.Preload(self._settings.modules))
        with contextlib.suppress(WorkerError):
            await life.answer(life.warm, self._settings.warm_timeout_s)
            self._life = life
            self._changed.set()
            self._listener.fork_server_warm()


class _Life:
    """What one fork server was asked and has told."""

    def __init__(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.warm: asyncio.Future[wire.Warm] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self._control = control
        self._num_forks = 0
        self._forked: dict[int, asyncio.Future[int]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        loop.add_reader(control, self._read)

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Never blocks: a fork server that does not read is at its end."""
        try:
            socket.send_fds(self._control, [wire.FORK_MESSAGES.encode(message)], descriptors)
        except OSError as error:
            self.end(f"its socket failed: {error}")

    def end(self, reason: str) -> None:
        """It is of no more use; first reason wins."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def close(self, reason: str) -> None:
        """Nothing comes from it any more: tell all who wait."""
        asyncio.get_running_loop().remove_reader(self._control)
        self.end(reason)
        error = WorkerError(f"the fork server is gone: {self.ended.result()}")
        waiting: list[asyncio.Future[Any]] = [self.warm, *self._forked.values(), *self._exits.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody need be waiting

    async def fork(self, launch: ForkLaunch) -> Workers:
        """All processes of `launch`, or none. Raises WorkerError."""
        try:
            log = await asyncio.to_thread(open_log, launch.log_path, launch.header)
        except OSError as error:
            raise WorkerError(f"cannot write {launch.log_path}: {error}") from error
        with contextlib.ExitStack() as undo:
            undo.callback(kill_tree, launch.mark)  # blocks the loop for some 50 ms if some of them run
            try:
                first = self._order(launch, launch.environments[0], log, launch.passed)
                orders = [first, *(self._order(launch, other, log, {}) for other in launch.environments[1:])]
                pids = [await self.answer(forked, FORK_TIMEOUT_S) for forked, _ in orders]
            finally:
                os.close(log)
            undo.pop_all()
        return Workers(launch.mark, tuple(pids), tuple(exited for _, exited in orders), self.end)

    async def answer(self, future: asyncio.Future[T], limit_s: float) -> T:
        """What it says within `limit_s`; a fork server that says nothing is at its end. Raises WorkerError.

        In slices, so that a stall of our own counts as one slice at most, however long it was.
        """
        for _ in range(ANSWER_SLICES):
            waits = (future, self.ended)
            await asyncio.wait(waits, timeout=limit_s / ANSWER_SLICES, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if self.ended.done():
                break
        self.end(f"it said nothing for {limit_s:g} s")
        raise WorkerError(f"the fork server is gone: {self.ended.result()}")

    def _order(
        self, launch: ForkLaunch, environment: Mapping[str, str], log: int, passed: Mapping[str, int]
    ) -> tuple[asyncio.Future[int], asyncio.Future[int]]:
        """Ask for one process; futures of its pid and of its exit status."""
        self._num_forks += 1
        number = self._num_forks
        loop = asyncio.get_running_loop()
        forked: asyncio.Future[int] = loop.create_future()
        exited: asyncio.Future[int] = loop.create_future()
        self._forked[number], self._exits[number] = forked, exited
        names, values = tuple(environment), tuple(environment.values())
        order = wire.Fork(number, launch.module, launch.mark, names, values, tuple(passed))
        self.send(order, (log, *passed.values()))
        return forked, exited

    def _read(self) -> None:
        try:
            data = self._control.recv(wire.FORK_MESSAGE_BYTES_MAX)
            message = wire.FORK_MESSAGES.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self.end(f"what it says makes no sense: {error}")
            return
        match message:
            case wire.Warm():
                if not self.warm.done():
                    self.warm.set_result(message)
            case wire.Forked(number, pid) if number in self._forked:
                self._forked.pop(number).set_result(pid)
            case wire.ForkFailed(number, reason) if number in self._forked:
                self._forked.pop(number).set_exception(WorkerError(f"the worker was not forked: {reason}"))
            case wire.WorkerExited(number, status) if number in self._exits:
                self._exits.pop(number).set_result(status)
            case None:
                asyncio.get_running_loop().remove_reader(self._control)
                self.end("it closed its socket")
            case _:
                self.end(f"what it says makes no sense: {type(message).__name__}")
