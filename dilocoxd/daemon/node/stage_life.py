"""One life of the trainers of a pipeline stage on a node: what an outer part's life is, for several processes at once.

They share buffers that are new in each life: what lies in them comes from the head, when a trainer asks for it.
"""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any, Final

from dilocoxd.daemon.node.part_life import PartLife, Stream
from dilocoxd.daemon.node.slot_world import SlotWorld
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import TRAINER_MODULE, ForkLaunch
from dilocoxd.daemon.workers.hang_dump import dump_of
from dilocoxd.daemon.workers.local_server import Connection
from dilocoxd.ipc.client import (
    CLUSTER_ADDRESS_VARIABLE,
    GENERATION_VARIABLE,
    ON_NODE_VARIABLE,
    PEER_VARIABLE,
    RUN_DIRECTORY_VARIABLE,
    SOCKET_VARIABLE,
)
from dilocoxd.ipc.hang_files import collectives_name, stacks_name
from dilocoxd.wire.local import node
from dilocoxd.wire.local.buffers import Buffer
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach, WorkerHello

HANG_S: Final = 2.0
"""So long trainers have to tell where they hang: the head waits for it no more than a second longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageAt:
    """Where a stage runs: which of the node's places this is, of how many, and the node's address for the others."""

    place: int
    places: int
    address: str


class _Rank:
    """Connection of one trainer."""

    def __init__(self, life: "StageLife", worker: int, connection: Connection) -> None:
        self._life = life
        self._worker = worker
        self.connection = connection

    def on_message(self, message: Any) -> None:
        self._life.rank_said(self._worker, message)

    def on_ended(self, reason: str) -> None:
        """Its exit status says more, and comes at once."""


class StageLife(PartLife):
    """`run` once."""

    def __init__(
        self, world: SlotWorld, start: node.StartStage, stream: Stream, folder: Path, generation: int, at: StageAt
    ) -> None:
        super().__init__(world, start, stream, Buffers(), folder, generation)
        self._stage = start
        self._at = at
        self._ranks: dict[int, _Rank] = {}

    async def run(self) -> str:
        """See PartLife."""
        try:
            return await super().run()
        finally:
            self._buffers.close()

    def admit_rank(self, hello: WorkerHello, connection: Connection) -> _Rank | None:
        """It is a process that was forked for this life, and comes for the first time."""
        worker = hello.stage_rank - self._stage.first_rank
        if hello.generation != self._generation or not 0 <= worker < self._stage.here or worker in self._ranks:
            return None
        rank = _Rank(self, worker, connection)
        self._ranks[worker] = rank
        self.rank_said(worker, hello)
        return rank

    def rank_said(self, worker: int, message: Any) -> None:
        """To the head."""
        self._put(node.FromPart(LOCAL_MESSAGES.encode(message), worker))

    async def _tell_of_hang(self) -> None:
        """See PartLife. What they tell stays here, too."""
        assert self._workers is not None
        ranks = [range(rank, rank + 1) for rank in self._numbers]
        try:
            told = await dump_of(self._folder, self._generation, self._workers, lambda: False, ranks, HANG_S)
            files = await asyncio.to_thread(_read, self._folder / told, self._numbers) if told else []
        except OSError as error:
            self._world.tell(f"where trainers hang cannot be told: {error}")
            return
        for file in files:
            await self._stream.send(file)

    @property
    def _numbers(self) -> range:
        """Of our ranks among all."""
        return range(self._stage.first_rank, self._stage.first_rank + self._stage.here)

    def _connection_of(self, worker: int) -> Connection | None:
        rank = self._ranks.get(worker)
        return rank.connection if rank is not None else None

    def _tell(self, connection: Connection | None, message: Any) -> None:
        if isinstance(message, Attach):
            # Sizes are the head's; pages exist where they are touched.
            self._buffers.provide(map(Buffer, message.names, message.sizes))
        super()._tell(connection, message)

    def _end_connections(self) -> None:
        for rank in self._ranks.values():
            rank.connection.end()

    def _launch(self) -> ForkLaunch:
        stage, at, world = self._stage, self._at, self._world
        common = {
            SOCKET_VARIABLE: str(world.socket_path),
            GENERATION_VARIABLE: str(self._generation),
            RUN_DIRECTORY_VARIABLE: str(self._folder),
            PEER_VARIABLE: stage.peer,
            ON_NODE_VARIABLE: "1",
            CLUSTER_ADDRESS_VARIABLE: at.address,
            "MASTER_ADDR": world.host,
            "MASTER_PORT": str(stage.port),
            "WORLD_SIZE": str(stage.num_ranks),
            "LOCAL_WORLD_SIZE": str(stage.here * at.places),
        }
        environments = tuple(
            {**common, "RANK": str(stage.first_rank + each), "LOCAL_RANK": str(at.place * stage.here + each)}
            for each in range(stage.here)
        )
        log = world.directory / "logs" / "trainer.log"
        first, last = stage.first_rank, stage.first_rank + stage.here - 1
        header = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} trainer ranks {first} to {last} of {stage.served}"
        return ForkLaunch(TRAINER_MODULE, environments, log, f"{world.mark}/stage-{self._generation}", header)


def _read(folder: Path, ranks: range) -> list[node.HangFile]:
    """What the head gets of a dump. Raises OSError."""
    found = []
    for name in (each(rank) for rank in ranks for each in (stacks_name, collectives_name)):
        path = folder / name
        if path.exists():
            with path.open("rb") as file:
                found.append(node.HangFile(name, file.read(node.PIECE_BYTES)))
    return found
