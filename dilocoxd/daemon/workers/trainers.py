"""Keeps the trainers of a site running: one generation after the other, each with fresh ranks and a fresh rendezvous.

The daemon alone decides restarts: when any rank is lost the whole generation is killed and the next one starts from the
anchor. Ranks are forks of the fork server, so that a generation costs no imports.
"""

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.hang_dump import dump_of, left_by_nccl
from dilocoxd.daemon.workers.local_server import Connection
from dilocoxd.daemon.workers.ranks import ADDRESS, StagePlaces, start_ranks
from dilocoxd.daemon.workers.supervisor import nap
from dilocoxd.errors import ConfigError, WireError, WorkerError
from dilocoxd.ipc.client import LINK_LOST_STATUS
from dilocoxd.ipc.keep_alive import RestartBudget, keep_alive
from dilocoxd.ipc.process_tree import is_descendant
from dilocoxd.machines.phase.vocabulary import TrainerCommand, TrainerMessage
from dilocoxd.wire.local import buffers as local_buffers, trainer as local_trainer, worker as local_worker
from dilocoxd.wire.local.node import NODE_FAULTS

FROM_TRAINER: Final = TrainerMessage.__args__
STOP_GRACE_S: Final = 6.0
LINK_GRACE_S: Final = 1.0
"""Time for those who stand for ranks on nodes to tell whether the connection was lost, or the rank."""
LATE_TOLD: Final = 8
EXIT_GRACE_S: Final = 10.0
"""Time to leave after TrainerStopped: gloo's threads may take a moment, or abort (LOCAL_TRAINING section 1)."""


class TrainerListener(Protocol):
    """Who is told. Called on the loop, must not block."""

    def trainer_starting(self, generation: int) -> None: ...

    def trainer_connected(self, generation: int) -> None: ...

    def trainer_said(self, generation: int, message: TrainerMessage) -> None: ...

    def trainer_lost(self, generation: int, reason: str) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class TrainerSettings:
    """`launch(generation)` gives a fresh mark and the environment that all ranks share."""

    launch: Callable[[int], ForkLaunch]
    budget: RestartBudget
    num_stages: int
    run_directory: Path
    """Where ranks that hang leave what they tell of it."""
    silence_max_s: float
    """Between start and TrainerReady; every sign of life starts it again."""
    address: str = ADDRESS
    """Where the ranks meet."""
    away: StagePlaces | None = None
    """Of the last stages, which run on nodes."""


class _Rank:
    """Connection of one stage rank."""

    def __init__(self, generation: "TrainerLife", connection: Connection, stage_rank: int) -> None:
        self._generation = generation
        self.connection = connection
        self.stage_rank = stage_rank

    def on_message(self, message: Any) -> None:
        self._generation.on_message(self.stage_rank, message)

    def on_ended(self, reason: str) -> None:
        self._generation.end(f"{self._generation.name_of(self.stage_rank)}: {reason}")


class TrainerLife:
    """One start of the trainers."""

    def __init__(
        self,
        number: int,
        num_stages: int,
        listener: TrainerListener,
        name_of: Callable[[int], str] = lambda rank: f"stage rank {rank}",
        first_away: int | None = None,
    ) -> None:
        """`name_of`: what people are told of a rank. `first_away`: the first one that runs on a node."""
        self.number = number
        self.name_of = name_of
        self.node_fault: tuple[int, str] | None = None
        """Stage rank, and what is wrong with the node that it runs on."""
        self._first_away = num_stages if first_away is None else first_away
        self.num_stages = num_stages
        self.ranks: dict[int, _Rank] = {}
        self.is_ready = False
        self.has_stopped = False
        """It said TrainerStopped: whatever its exit status is, it ended well."""
        self.failure = ""
        self.is_misconfigured = False
        self.is_hung = False
        """It was silent for too long, and is asked where it is before it is killed."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.last_sign = asyncio.get_running_loop().time()
        self._listener = listener

    def on_message(self, stage_rank: int, message: Any) -> None:
        if self.is_hung:
            return  # too late: the phase machine has given it up, and only its dump is waited for
        self.last_sign = asyncio.get_running_loop().time()
        match message:
            case local_trainer.TrainerReady():
                self.is_ready = True
                self._connected()
            case local_worker.WorkerFailed() if message.kind in NODE_FAULTS and stage_rank >= self._first_away:
                self.node_fault = self.node_fault or (stage_rank, message.detail)
                self.end(f"{self.name_of(stage_rank)}: {message.detail}")
            case local_worker.WorkerFailed():
                self.failure = self.failure or f"{self.name_of(stage_rank)}: {message.kind}: {message.detail}"
                self.is_misconfigured = self.is_misconfigured or message.kind == "config"
            case _ if isinstance(message, FROM_TRAINER):
                self.has_stopped = self.has_stopped or isinstance(message, local_trainer.TrainerStopped)
                self._listener.trainer_said(self.number, message)
            case _:
                raise WireError("unexpected_message", f"{type(message).__name__} from a trainer")

    def _connected(self) -> None:
        if len(self.ranks) != self.num_stages:
            raise WireError("unexpected_message", "TrainerReady before all ranks said hello")
        self._listener.trainer_connected(self.number)

    def never_came(self) -> str:
        """Ends a sentence: which ranks have not said hello; empty if all have."""
        late = [self.name_of(rank) for rank in range(self.num_stages) if rank not in self.ranks]
        return f"; {', '.join(late[:LATE_TOLD])} never came" if late else ""

    def end(self, reason: str, *, is_hung: bool = False) -> None:
        """First reason wins: the others follow from it."""
        if not self.ended.done():
            self.is_hung = is_hung
            self.ended.set_result(reason)


class Trainer:
    """`run` keeps generations going; `tell` speaks to stage rank 0 of the present one."""

    is_kept = True
    """Those that are lost are started again."""

    def __init__(
        self, settings: TrainerSettings, fork_server: ForkServer, buffers: Buffers, listener: TrainerListener
    ) -> None:
        self.pids: tuple[int, ...] = ()
        """By stage rank."""
        self.restarts = settings.budget
        self.generation = 0
        self._settings = settings
        self._fork_server = fork_server
        self._buffers = buffers
        self._listener = listener
        self._present: TrainerLife | None = None
        self._stopping = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when `run` is over."""

    @property
    def pid(self) -> int:
        """Of stage rank 0; 0 while there is none."""
        return self.pids[0] if self.pids else 0

    @property
    def is_over(self) -> bool:
        """No further generation follows."""
        return self._stopping.is_set()

    @property
    def state(self) -> str:
        """For the operator: starting, running, lost or stopped."""
        if self._present is None:
            return "stopped" if self.is_over or not self.generation else "lost"
        return "running" if self._present.is_ready else "starting"

    def admit(self, hello: local_worker.WorkerHello, connection: Connection) -> _Rank | None:
        """Let a rank of the present generation in, each once, and give it its buffers."""
        generation = self._present
        if generation is None or generation.ended.done() or not self._may_join(generation, hello, connection):
            return None
        is_new = hello.stage_rank < generation.num_stages and hello.stage_rank not in generation.ranks
        if not is_new or hello.num_stages != generation.num_stages:
            return None
        rank = _Rank(generation, connection, hello.stage_rank)
        generation.ranks[hello.stage_rank] = rank
        generation.last_sign = asyncio.get_running_loop().time()
        wanted = (local_buffers.ANCHOR, local_buffers.PHASE, local_buffers.LEFT_OUT)
        names = tuple(name for name in wanted if self._buffers.size(name))
        descriptors, sizes = self._buffers.descriptors(names)
        connection.send(local_worker.Attach(names, tuple(sizes)), descriptors)
        return rank

    def _may_join(self, generation: TrainerLife, hello: local_worker.WorkerHello, connection: Connection) -> bool:
        """Whether this process is one that we started, for this generation."""
        return hello.generation == generation.number and is_descendant(connection.pid, os.getpid())

    def tell(self, message: TrainerCommand) -> None:
        """Send to stage rank 0, if there is one."""
        rank = self._present.ranks.get(0) if self._present is not None else None
        if rank is not None:
            rank.connection.send(message)

    def restart(self, number: int, reason: str) -> None:
        """End this generation, which is silent; the next one follows."""
        if self._present is not None and self._present.number == number:
            self._present.end(reason, is_hung=True)

    def stop(self) -> None:
        """No further generation; the present one is ended after a short time to leave by itself."""
        self._stopping.set()
        if self._present is not None:
            self._present.end("the site stops")

    async def run(self) -> None:
        """Until `stop`. Raises WorkerError when the budget is spent, ConfigError when the trainers refuse to run."""
        try:
            await keep_alive(
                "a trainer (logs/trainer-*.log)", self._one_generation, self._lost, self.restarts, self._stopping
            )
        finally:
            self.ended.set()

    def _lost(self, reason: str) -> None:
        self._listener.trainer_lost(self.generation, reason)
        self.pids = ()

    async def _one_generation(self) -> str:
        """Why it ended. Was it told to, no further one follows."""
        self.generation += 1
        generation = TrainerLife(
            self.generation, self._settings.num_stages, self._listener, self._name_of, self._first_away
        )
        self._listener.trainer_starting(self.generation)
        self._present = generation
        try:
            workers = await self._fork()
        except (WorkerError, OSError) as error:
            self._present = None
            return str(error)
        self.pids = workers.pids
        generation.last_sign = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                watches = [
                    group.create_task(self._watch_exit(workers, generation), name="trainer exit"),
                    group.create_task(self._watch_start(generation), name="trainer start"),
                ]
                reason = await asyncio.shield(generation.ended)
                for watch in watches:
                    watch.cancel()
            reason += await self._told_of_hang(generation, workers)
        finally:
            self._present = None
            for rank in generation.ranks.values():
                if not generation.has_stopped:
                    rank.connection.end()
            told = await workers.end(grace_s=self._grace_s(generation))
        lost = self._note_fault(generation) or self._links_lost(workers)
        if lost:
            self.restarts.excuse()
        if generation.is_misconfigured:
            raise ConfigError(generation.failure)
        if generation.has_stopped:
            self._stopping.set()
            return "it stopped as it was told"
        return f"{generation.failure or reason} ({told}){lost}"

    async def _told_of_hang(self, generation: TrainerLife, workers: Workers) -> str:
        """End of a sentence: where the ranks of a hung generation wrote what they are at. Before their sockets end."""
        if self._stopping.is_set():
            return ""
        directory, number = self._settings.run_directory, generation.number
        try:
            if generation.is_hung:
                folder = await dump_of(directory, number, workers, self._stopping.is_set, self._ranks_by_process())
            else:
                folder = await left_by_nccl(directory, number, len(workers.pids))
        except OSError as error:
            return f"; where it hung cannot be told: {error}"
        return f"; where each rank was: {folder}" if folder else ""

    async def _fork(self) -> Workers:
        """All ranks of the present generation. Raises WorkerError, OSError."""
        settings = self._settings
        launch = settings.launch(self.generation)
        return await start_ranks(launch, settings.num_stages, self._fork_server, settings.away, settings.address)

    def _note_fault(self, generation: TrainerLife) -> str:
        """Ends a sentence, if a node is at fault and no trainer: another one may take its stage."""
        away = self._settings.away
        if away is None or generation.node_fault is None:
            return ""
        rank, why = generation.node_fault
        index = (rank - self._first_away) // away.here
        away.note_fault(index, why)
        return f"; the node {away.node_of(index)} is left alone for a while"

    def _links_lost(self, workers: Workers) -> str:
        """Ends a sentence: the nodes whose connection has ended, of which the others may have died; empty if none has.
        Nobody failed then."""
        away = self._settings.away
        first = len(workers.pids) - (away.num if away is not None else 0)
        lost = [index for index in range(first, len(workers.pids)) if workers.status(index) == LINK_LOST_STATUS]
        if away is None or not lost:
            return ""
        return f"; the connection ended to node {', '.join(away.node_of(index - first) for index in lost)}"

    def _ranks_by_process(self) -> list[range]:
        """Whom each process is, or stands for."""
        away, total, here = self._settings.away, self._settings.num_stages, self._first_away
        each = away.here if away is not None else 1
        firsts = range(here, total, each)
        return [*(range(rank, rank + 1) for rank in range(here)), *(range(first, first + each) for first in firsts)]

    @property
    def _first_away(self) -> int:
        """Of the ranks that run on nodes."""
        away = self._settings.away
        return self._settings.num_stages - (away.num * away.here if away is not None else 0)

    def _name_of(self, rank: int) -> str:
        away, first = self._settings.away, self._first_away
        where = f" on node {away.node_of((rank - first) // away.here)}" if away is not None and rank >= first else ""
        return f"stage rank {rank}{where}"

    def _grace_s(self, generation: TrainerLife) -> float:
        if generation.has_stopped:
            return EXIT_GRACE_S
        if self._stopping.is_set():
            return STOP_GRACE_S
        return LINK_GRACE_S if self._settings.away else 0.0

    async def _watch_exit(self, workers: Workers, generation: TrainerLife) -> None:
        await workers.first_exit()
        generation.end("a trainer ended")

    async def _watch_start(self, generation: TrainerLife) -> None:
        """Until the trainers are ready, silence is a failed start; afterwards the phase machine watches."""
        loop = asyncio.get_running_loop()
        limit = self._settings.silence_max_s
        while not generation.is_ready:
            lost_s = await nap(limit / 20)
            generation.last_sign += lost_s  # time that we lost ourselves is not their silence
            silence = loop.time() - generation.last_sign
            if silence > limit and not generation.is_ready:
                told = f"it said nothing for {silence:.0f} s while it started{generation.never_came()}"
                generation.end(told, is_hung=True)
