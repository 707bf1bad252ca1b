"""A node as the place of an outer part: a process here takes over the node's connection and stands for the part."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dilocoxd.answers.nodes import NodePart, NodeReceives, NodeSends
from dilocoxd.daemon.head.door import CHOICE_S, NodeDoor
from dilocoxd.daemon.head.last_nodes import LastNodes
from dilocoxd.daemon.head.waiting import Held, WaitingNode
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.machine_files import LocalFiles
from dilocoxd.ipc.client import NODE_INCARNATION_VARIABLE, NODE_NEW_VARIABLE, NODE_SERVED_VARIABLE
from dilocoxd.store.snapshots import SnapshotIndex

AWAY_MODULE: Final = "dilocoxd.outerworker.away.main"


@dataclass(frozen=True, slots=True)
class PartAway:
    """An outer part that runs on nodes."""

    number: int
    served: str
    """What nodes call it."""
    key_path: Path
    feedback_path: Path
    """Of the head; while there is none, what nodes have of theirs is of no use."""


class NodePlace:
    """Of one part. Implements WorkerPlace."""

    def __init__(self, door: NodeDoor, fork_server: ForkServer, part: PartAway, last_nodes: LastNodes) -> None:
        self._door = door
        self._fork_server = fork_server
        self._part = part
        self._last_nodes = last_nodes
        self._given: Held | None = None
        """What the node has that was given this part last."""
        self._is_attached = False
        self._taken: WaitingNode | None = None
        self.seen = NodePart(part=part.number, node=last_nodes.of(part.served), state="starting", since=time.time())
        """For people."""
        self.sends: Callable[[], NodeSends | None] = lambda: None
        self.receives: Callable[[], NodeReceives | None] = lambda: None
        """Likewise; daemon/uploads fills them in."""

    def _note_wait(self) -> None:
        if self.seen.state != "waiting":
            self._note("waiting", self.seen.node)

    def _note(self, state: Literal["starting", "waiting", "running"], node: str) -> None:
        self.seen = dataclasses.replace(self.seen, state=state, node=node, since=time.time())

    async def start(self, launch: ForkLaunch) -> Workers:
        """See WorkerPlace; waits for a node."""
        patience_s = CHOICE_S if self._part.feedback_path.exists() else 0.0
        holds = self._given if self._is_attached else None
        served, last = self._part.served, self._last_nodes.process_of(self._part.served)
        visitor = await self._door.take(served, self._note_wait, holds=holds, patience_s=patience_s, last=last)
        self._taken = visitor
        self._note("starting", visitor.who)
        incarnation = holds.incarnation if holds is not None else self._door.new_incarnation()
        self._given = Held(incarnation, visitor.process)
        with visitor.sock:
            more = {
                NODE_SERVED_VARIABLE: served,
                NODE_INCARNATION_VARIABLE: incarnation,
                NODE_NEW_VARIABLE: "" if self._is_attached else "1",
            }
            workers = await self._fork_server.start(
                visitor.given_to(launch, AWAY_MODULE, self._part.key_path, more)
            )  # fmt: skip
        self._note("running", visitor.who)
        await asyncio.to_thread(self._last_nodes.note, served, visitor.who, visitor.process)
        return workers

    @property
    def where(self) -> str:
        """See WorkerPlace."""
        return f" on node {self.seen.node}" if self.seen.node else ""

    def note_attached(self) -> None:
        """See WorkerPlace."""
        self._is_attached = True

    def note_fault(self, why: str) -> None:
        """See WorkerPlace."""
        if self._taken is not None:
            self._door.set_aside(self._taken, why)


class BroughtFiles(LocalFiles):
    """Files of a part on a node: what it writes of a snapshot is brought into ours before it says so."""

    async def prepare(self, directory: Path) -> None:
        """Those of the first machine are the ones."""

    async def publish(self, directory: Path, index: SnapshotIndex) -> None:
        """Likewise."""

    async def forget(self, directory: Path) -> None:
        """Likewise."""
