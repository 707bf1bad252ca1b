"""The daemon's end of several real outer parts: processes behind what the daemon has in front.

They share the memfds of one machine, or those of each of several."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dilocoxd.config.manifest import Manifest
from dilocoxd.daemon.workers.machine_files import PartsMachine
from dilocoxd.daemon.workers.outer_parts import PartsTogether
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import WorkerError
from dilocoxd.ipc.client import PART_VARIABLE
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local.outer_worker import OpenState
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import Launcher, OuterDaemon, WorkerDied
from tests.harness.outer_worker.machines import NodeFiles, OwnBuffers, on_machine, placed


class PartsDaemon:
    """Starts `num_parts` outer workers for one run directory. Use as a context manager."""

    def __init__(
        self, directory: Path, manifest: Manifest, launch: Launcher, num_parts: int, nodes: Sequence[int] = ()
    ) -> None:
        """`nodes`: parts on each machine; empty: one has all."""
        nodes = tuple(nodes) or (num_parts,)
        self._placed = placed(nodes)
        plans = [make_plan(manifest, part) for part in self._placed]
        self.buffers = OwnBuffers(plans, nodes)
        self.parts = [OuterDaemon(directory, manifest, launch) for _ in range(num_parts)]
        for index, part in enumerate(self.parts):
            own = self.buffers.descriptors(index)
            part.share_buffers(
                {name: fd for name, (fd, _) in own.items()}, {name: size for name, (_, size) in own.items()}
            )
        machines = [PartsMachine(count, NodeFiles(node)) for node, count in enumerate(nodes)]
        self.together = PartsTogether(num_parts, self._ask_part, self.buffers, machines)
        self.together.describe(plans[0].described())
        self._turns = [asyncio.Lock() for _ in self.parts]
        self._requests = 0

    def __enter__(self) -> PartsDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.parts:
            part.close()
        self.buffers.close()

    def start(self, environments: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """All parts, each with the common buffers; some with variables of their own."""
        for index in range(len(self.parts)):
            self.start_part(index, **(environments or {}).get(index, {}))

    def start_part(self, index: int, **environment: str) -> None:
        """A process for this part, the first one or the next."""
        part = self.parts[index]
        part.start(**environment, **{PART_VARIABLE: str(self._placed[index])})
        ready = part.do(OpenState)
        if len(self.parts) > 1:
            self.together.opened(ready)

    def restart_dead(self) -> int:
        """Start those that have died again; how many they were."""
        dead = [
            index for index, part in enumerate(self.parts) if part.process is None or part.process.poll() is not None
        ]
        for index in dead:
            self.parts[index].kill()
            self.start_part(index)
        return len(dead)

    async def _ask_part(self, part: int, request: Any) -> Any:
        daemon = self.parts[part]
        try:
            async with self._turns[part]:
                number = daemon.number()
                daemon.send(on_machine(self.buffers.node_of[part], dataclasses.replace(request, request=number)))
                answer = await asyncio.to_thread(daemon.answer, number)
        except WorkerDied as died:
            raise WorkerError(f"part {part} is gone: {died}") from died
        if isinstance(answer, WorkerFailed):
            raise RequestRefused(answer.kind, answer.detail)
        return answer

    def request(self, kind: type, *arguments: Any) -> Any:
        """With a number of its own."""
        self._requests += 1
        return kind(self._requests, *arguments)

    async def do(self, kind: type, *arguments: Any) -> Any:
        """The answer of all; of the one worker where there is only one."""
        request = self.request(kind, *arguments)
        return await self.together.ask(request) if len(self.parts) > 1 else await self._ask_part(0, request)
