"""A node as the place of a pipeline stage: a process here takes over its connection and stands for its trainers.

Each generation of trainers takes a node anew: what a stage needs is the head's, and any node with room will do.
"""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from dilocoxd.answers.nodes import NodeStage
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.head.last_nodes import LastNodes
from dilocoxd.daemon.head.waiting import NodeProcess, WaitingNode
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.ipc.client import NODE_GRACE_VARIABLE, NODE_SERVED_VARIABLE

STAGE_CHOICE_S: Final = 3.0
"""So long a stage waits for the node that had it before another will do. It may have prepared a text, and no more is
lost there: less than for a part (CHOICE_S), but more than a node needs to come again after its trainers ended."""
AWAY_STAGE_MODULE: Final = "dilocoxd.trainer.away.main"


@dataclasses.dataclass(frozen=True, slots=True)
class StageAway:
    """A stage that runs on nodes."""

    number: int
    served: str
    """What nodes call it."""
    ranks: int
    key_path: Path
    grace_s: float = 0.0
    """So long a silence of its node is borne (NodeDoor.mind)."""


class NodeStagePlace:
    """Of one stage."""

    def __init__(self, door: NodeDoor, fork_server: ForkServer, stage: StageAway, last_nodes: LastNodes) -> None:
        self.stage = stage
        self._door = door
        self._fork_server = fork_server
        self._last_nodes = last_nodes
        self._taken: WaitingNode | None = None
        self.seen = NodeStage(stage=stage.number, node=self.last_node, state="starting", since=time.time())
        """For people."""

    @property
    def last_node(self) -> str:
        """That ran it last; empty: none did."""
        return self._last_nodes.of(self.stage.served)

    @property
    def last_process(self) -> NodeProcess | None:
        """Likewise; None: not known."""
        return self._last_nodes.process_of(self.stage.served)

    def _note(self, state: Literal["starting", "waiting", "running"], node: str) -> None:
        if (self.seen.state, self.seen.node) != (state, node):
            self.seen = dataclasses.replace(self.seen, state=state, node=node, since=time.time())

    def note_found(self, node: WaitingNode | None) -> None:
        """The one that it would have now."""
        if node is None:
            self._note("waiting", self.last_node)
        else:
            self._note("starting", node.who)

    def note_fault(self, why: str) -> None:
        """The node that runs the stage is at fault, and no trainer there."""
        if self._taken is not None:
            self._door.set_aside(self._taken, why)

    def _note_silence(self, is_silent: bool) -> None:
        self._note("waiting" if is_silent else "running", self.seen.node)

    async def start(self, taken: WaitingNode, launch: ForkLaunch) -> Workers:
        """See TakenNode."""
        self._taken = taken
        more = {NODE_SERVED_VARIABLE: self.stage.served, NODE_GRACE_VARIABLE: str(self.stage.grace_s)}
        workers = await self._fork_server.start(
            taken.given_to(launch, AWAY_STAGE_MODULE, self.stage.key_path, more)
        )  # fmt: skip
        self._note("running", taken.who)
        self._door.mind(taken, workers, self.stage.grace_s, self._note_silence)
        await asyncio.to_thread(self._last_nodes.note, self.stage.served, taken.who, taken.process)
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


class NodeStages:
    """All stages of a site that run on nodes. Implements StagePlaces (daemon/workers/ranks.py)."""

    def __init__(self, door: NodeDoor, places: Sequence[NodeStagePlace]) -> None:
        """`places`: in the order of the pipeline."""
        self.num = len(places)
        self.here = places[0].stage.ranks
        self._door = door
        self._places = places

    async def take(self) -> list[TakenStage]:
        """See StagePlaces. The node that had a stage last is waited for a little: stages stay where they are."""
        places = self._places
        taken = await self._door.take_all(
            [place.stage.served for place in places],
            [STAGE_CHOICE_S if place.last_node else 0.0 for place in places],
            lambda index, node: places[index].note_found(node),
            [place.last_process for place in places],
        )
        return [TakenStage(place, node) for place, node in zip(places, taken, strict=True)]

    def note_fault(self, index: int, why: str) -> None:
        """See StagePlaces."""
        self._places[index].note_fault(why)

    def node_of(self, index: int) -> str:
        """See StagePlaces."""
        return self._places[index].seen.node
