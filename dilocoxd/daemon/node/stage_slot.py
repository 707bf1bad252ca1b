"""A place for the trainers of one pipeline stage on a node: a connection to the head, and then a life (slot.py)."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

from dilocoxd.daemon.node.slot import SealedStream, Slot
from dilocoxd.daemon.node.slot_world import SlotWorld
from dilocoxd.daemon.node.stage_life import StageAt, StageLife
from dilocoxd.daemon.workers.local_server import Connection, WorkerHandler
from dilocoxd.errors import WireError
from dilocoxd.ipc.process_tree import is_descendant
from dilocoxd.wire.local.node import STAGE_PLACE, StartStage
from dilocoxd.wire.local.worker import WorkerHello

GENERATIONS: Iterator[int] = itertools.count(1)
"""Of all stage places of this node: a trainer that comes too late finds no other one's life."""


class StageSlot(Slot):
    """Nothing of a life is kept but the name of the stage, so that it comes back to the place where it was."""

    kind, what = STAGE_PLACE, "a pipeline stage"

    def __init__(self, world: SlotWorld, number: int, num_slots: int) -> None:
        """`num_slots`: of this kind, on this node."""
        super().__init__(world, number, f"stage-slot-{number}")
        self._num_slots = num_slots
        self._life: StageLife | None = None

    def admit(self, hello: WorkerHello, connection: Connection) -> WorkerHandler | None:
        """See Slot."""
        life = self._life
        if life is None or hello.role != "trainer" or not is_descendant(connection.pid, os.getpid()):
            return None
        return life.admit_rank(hello, connection)

    def close(self) -> None:
        """See Slot. Lives give back theirs."""

    async def _live(self, start: Any, stream: SealedStream, address: str) -> None:
        if not isinstance(start, StartStage):
            raise WireError("unexpected_message", "the head wants a part where a stage has its place")
        if not await self._noted(start.served, stream):
            return
        folder = self._world.directory / "stages" / start.served
        at = StageAt(self.number, self._num_slots, address)
        life = StageLife(self._world, start, stream, folder, next(GENERATIONS), at)
        self._life = life
        last = start.first_rank + start.here - 1
        several = f"trainer ranks {start.first_rank} to {last}"
        which = f"{several if start.here > 1 else f'trainer rank {last}'} of {start.num_ranks}"
        self._tell(f"runs {which}")
        try:
            ended = await life.run()
        finally:
            self._life = None
        self._tell(f"{which} ended: {ended}")
