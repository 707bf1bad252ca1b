"""A node as the place of a pipeline stage: a process here takes over its connection and stands for its trainers.

Each generation of trainers takes a node anew: what a stage needs is the head's, and any node with room will do.
"""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Final, Literal

from dilocoxd.answers.nodes import NodeStage
from dilocoxd.daemon.head.door import CHOICE_S, NodeDoor, WaitingNode
from dilocoxd.daemon.head.last_nodes import LastNodes
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.ipc.client import NODE_SERVED_VARIABLE
from dilocoxd.wire.local.node import STAGE_PLACE

AWAY_STAGE_MODULE: Final = "dilocoxd.trainer.away.main"


@dataclasses.dataclass(frozen=True, slots=True)
class StageAway:
    """A stage that runs on nodes."""

    number: int
    served: str
    """What nodes call it."""
    ranks: int
    key_path: Path


class NodeStagePlace:
    """Of one stage. Implements StagePlace (daemon/workers/ranks.py)."""

    def __init__(self, door: NodeDoor, fork_server: ForkServer, stage: StageAway, last_nodes: LastNodes) -> None:
        self.here = stage.ranks
        self._door = door
        self._fork_server = fork_server
        self._stage = stage
        self._last_nodes = last_nodes
        node = last_nodes.of(stage.served)
        self.seen = NodeStage(stage=stage.number, node=node, state="starting", since=time.time())
        """For people."""

    def _note(self, state: Literal["starting", "waiting", "running"], node: str) -> None:
        self.seen = dataclasses.replace(self.seen, state=state, node=node, since=time.time())

    def _note_wait(self) -> None:
        if self.seen.state != "waiting":
            self._note("waiting", self.seen.node)

    async def take(self) -> "TakenStage":
        """See StagePlace. The node that had it last is waited for a little: stages stay where they are."""
        patience_s = CHOICE_S if self.seen.node else 0.0
        taken = await self._door.take(
            self._stage.served, self._note_wait, patience_s=patience_s, kind=STAGE_PLACE
        )  # fmt: skip
        self._note("starting", taken.who)
        return TakenStage(self, taken)

    async def start(self, taken: WaitingNode, launch: ForkLaunch) -> Workers:
        """See TakenNode."""
        more = {NODE_SERVED_VARIABLE: self._stage.served}
        workers = await self._fork_server.start(
            taken.given_to(launch, AWAY_STAGE_MODULE, self._stage.key_path, more)
        )  # fmt: skip
        self._note("running", taken.who)
        await asyncio.to_thread(self._last_nodes.note, self._stage.served, taken.who)
        return workers


@dataclasses.dataclass(frozen=True, slots=True)
class TakenStage:
    """Implements TakenNode (daemon/workers/ranks.py)."""

    place: NodeStagePlace
    node: WaitingNode

    async def start(self, launch: ForkLaunch) -> Workers:
        """See TakenNode."""
        return await self.place.start(self.node, launch)

    def close(self) -> None:
        """See TakenNode."""
        self.node.sock.close()
