"""Keeps the trainers of a site running: one generation after the other, each a fresh torchrun with fresh rendezvous.

The daemon alone decides restarts (torchrun runs with --max-restarts=0): when any rank is lost the whole generation is
killed and the next one starts from the anchor. Source: LOCAL_TRAINING section 3.
"""

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

from dilocoxd.daemon.buffers import Buffers
from dilocoxd.daemon.local_server import Connection
from dilocoxd.daemon.outer_worker import is_set_within
from dilocoxd.daemon.supervisor import Child, Launch, RestartBudget, nap
from dilocoxd.errors import ConfigError, WireError, WorkerError
from dilocoxd.ids import Monotonic
from dilocoxd.ipc.process_tree import is_descendant
from dilocoxd.rounds.phase_events import TrainerCommand, TrainerMessage
from dilocoxd.wire import local

FROM_TRAINER: Final = TrainerMessage.__args__
STOP_GRACE_S: Final = 6.0
EXIT_GRACE_S: Final = 10.0
"""Time to leave after TrainerStopped: gloo's threads may take a moment, or abort (LOCAL_TRAINING section 1)."""


def torchrun_command(num_stages: int) -> tuple[str, ...]:
    """One generation on this machine. `--standalone` = own store on a free port with a fresh id.

    Each rank goes through ipc.child, so that it dies with the agent even though it has a session of its own.
    """
    return (
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--max-restarts", "0", "--nnodes", "1", "--nproc-per-node", str(num_stages),
        "-m", "dilocoxd.ipc.child", sys.executable, "-m", "dilocoxd.trainer.main",
    )  # fmt: skip


class TrainerListener(Protocol):
    """Who is told. Called on the loop, must not block."""

    def trainer_starting(self, generation: int) -> None: ...

    def trainer_connected(self, generation: int) -> None: ...

    def trainer_said(self, generation: int, message: TrainerMessage) -> None: ...

    def trainer_lost(self, generation: int, reason: str) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class TrainerSettings:
    """`launch(generation)` gives a fresh mark and environment."""

    launch: Callable[[int], Launch]
    budget: RestartBudget
    num_stages: int
    silence_max_s: float
    """Between start and TrainerReady; every sign of life starts it again."""


class _Rank:
    """Connection of one stage rank."""

    def __init__(self, generation: "_Generation", connection: Connection, stage_rank: int) -> None:
        self._generation = generation
        self.connection = connection
        self.stage_rank = stage_rank

    def on_message(self, message: Any) -> None:
        self._generation.on_message(self.stage_rank, message)

    def on_ended(self, reason: str) -> None:
        self._generation.end(f"stage rank {self.stage_rank}: {reason}")


class _Generation:
    """One start of the trainers."""

    def __init__(self, number: int, num_stages: int, listener: TrainerListener) -> None:
        self.number = number
        self.num_stages = num_stages
        self.ranks: dict[int, _Rank] = {}
        self.is_ready = False
        self.has_stopped = False
        """It said TrainerStopped: whatever its exit status is, it ended well."""
        self.failure = ""
        self.is_misconfigured = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.last_sign = asyncio.get_running_loop().time()
        self._listener = listener

    def on_message(self, stage_rank: int, message: Any) -> None:
        self.last_sign = asyncio.get_running_loop().time()
        match message:
            case local.TrainerReady():
                self.is_ready = True
                self._connected()
            case local.WorkerFailed():
                self.failure = self.failure or f"stage rank {stage_rank}: {message.kind}: {message.detail}"
                self.is_misconfigured = self.is_misconfigured or message.kind == "config"
            case _ if isinstance(message, FROM_TRAINER):
                self.has_stopped = self.has_stopped or isinstance(message, local.TrainerStopped)
                self._listener.trainer_said(self.number, message)
            case _:
                raise WireError("unexpected_message", f"{type(message).__name__} from a trainer")

    def _connected(self) -> None:
        if len(self.ranks) != self.num_stages:
            raise WireError("unexpected_message", "TrainerReady before all ranks said hello")
        self._listener.trainer_connected(self.number)

    def end(self, reason: str) -> None:
        """First reason wins: the others follow from it."""
        if not self.ended.done():
            self.ended.set_result(reason)


class Trainer:
    """`run` keeps generations going; `tell` speaks to stage rank 0 of the present one."""

    def __init__(self, settings: TrainerSettings, buffers: Buffers, listener: TrainerListener) -> None:
        self.pids: tuple[int, ...] = ()
        self.is_over = False
        """No further generation follows."""
        self.restarts = settings.budget
        self.number = 0
        self._settings = settings
        self._buffers = buffers
        self._listener = listener
        self._generation: _Generation | None = None
        self._stopping = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when `run` is over."""

    @property
    def state(self) -> str:
        """For the operator: starting, running, lost or stopped."""
        if self._generation is None:
            return "stopped" if self.is_over or not self.number else "lost"
        return "running" if self._generation.is_ready else "starting"

    def admit(self, hello: local.WorkerHello, connection: Connection) -> _Rank | None:
        """Let a rank of the present generation in, each once, and give it its buffers."""
        generation = self._generation
        if generation is None or generation.ended.done() or hello.generation != generation.number:
            return None
        is_new = hello.stage_rank < generation.num_stages and hello.stage_rank not in generation.ranks
        if not is_new or hello.num_stages != generation.num_stages or not is_descendant(connection.pid, os.getpid()):
            return None
        rank = _Rank(generation, connection, hello.stage_rank)
        generation.ranks[hello.stage_rank] = rank
        generation.last_sign = asyncio.get_running_loop().time()
        names = (local.ANCHOR, local.PHASE)
        descriptors, sizes = self._buffers.descriptors(names)
        connection.send(local.Attach(names, tuple(sizes)), descriptors)
        self.pids = (*self.pids[:1], *(r.connection.pid for r in generation.ranks.values()))
        return rank

    def tell(self, message: TrainerCommand) -> None:
        """Send to stage rank 0, if there is one."""
        rank = self._generation.ranks.get(0) if self._generation is not None else None
        if rank is not None:
            rank.connection.send(message)

    def restart(self, number: int, reason: str) -> None:
        """End this generation; the next one follows."""
        if self._generation is not None and self._generation.number == number:
            self._generation.end(reason)

    def stop(self) -> None:
        """No further generation; the present one is ended after a short time to leave by itself."""
        self._stopping.set()
        if self._generation is not None:
            self._generation.end("the site stops")

    async def run(self) -> None:
        """Until `stop`. Raises WorkerError when the budget is spent, ConfigError when the trainers refuse to run."""
        try:
            await self._keep_alive()
        finally:
            self.ended.set()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            reason, has_stopped = await self._one_generation()
            is_over = has_stopped or self._stopping.is_set()
            self.is_over = is_over
            delay = 0.0 if is_over else self.restarts.next_delay(Monotonic(loop.time()))
            self._listener.trainer_lost(self.number, reason)
            self.pids = ()
            if delay is None:
                raise WorkerError(f"the trainers died too often, at last: {reason}; see logs/trainer-{self.number}.log")
            if is_over or await is_set_within(self._stopping, delay):
                return

    async def _one_generation(self) -> tuple[str, bool]:
        """Why it ended, and whether it had been told to."""
        self.number += 1
        generation = _Generation(self.number, self._settings.num_stages, self._listener)
        self._listener.trainer_starting(self.number)
        self._generation = generation
        child = await Child.start(self._settings.launch(self.number))
        self.pids = (child.pid,)
        try:
            async with asyncio.TaskGroup() as group:
                watches = [
                    group.create_task(self._watch_exit(child, generation), name="trainer exit"),
                    group.create_task(self._watch_start(generation), name="trainer start"),
                ]
                reason = await asyncio.shield(generation.ended)
                for watch in watches:
                    watch.cancel()
        finally:
            self._generation = None
            for rank in generation.ranks.values():
                if not generation.has_stopped:
                    rank.connection.end()
            status = await child.end(grace_s=self._grace_s(generation))
        if generation.is_misconfigured:
            raise ConfigError(generation.failure)
        if generation.has_stopped:
            return "it stopped as it was told", True
        return f"{generation.failure or reason} (exit status {status})", False

    def _grace_s(self, generation: _Generation) -> float:
        if generation.has_stopped:
            return EXIT_GRACE_S
        return STOP_GRACE_S if self._stopping.is_set() else 0.0

    async def _watch_exit(self, child: Child, generation: _Generation) -> None:
        status = await child.wait()
        generation.end(f"torchrun ended with status {status}")

    async def _watch_start(self, generation: _Generation) -> None:
        """Until the trainers are ready, silence is a failed start; afterwards the phase machine watches."""
        loop = asyncio.get_running_loop()
        limit = self._settings.silence_max_s
        while not generation.is_ready:
            lost_s = await nap(limit / 20)
            generation.last_sign += lost_s  # time that we lost ourselves is not their silence
            silence = loop.time() - generation.last_sign
            if silence > limit and not generation.is_ready:
                generation.end(f"it said nothing for {silence:.0f} s while it started")
