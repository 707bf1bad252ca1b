"""Several outer parts inside the test: a Worker for each, behind what the daemon has in front.

Each is on a machine of its own, with buffers and files of its own, unless a test says otherwise: so nobody gets to know
anything but by messages.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dilocoxd.config.manifest import Manifest
from dilocoxd.daemon.workers.machine_files import PartsMachine
from dilocoxd.daemon.workers.outer_parts import PartsTogether
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import WorkerError
from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.requests import Worker
from dilocoxd.wire.local.outer_worker import OpenState, StateReady, WriteSnapshot
from dilocoxd.wire.local.worker import WorkerAlive, WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon
from tests.harness.outer_worker.machines import NodeFiles, OwnBuffers, on_machine, placed


class Killed(BaseException):
    """Takes the place of SIGKILL where a test has no processes."""


class Crash:
    """Ends the life of a part right before or after its n-th journal write, counted over all of its lives, once."""

    def __init__(self, side: str, count: int) -> None:
        self.left = count
        self._side = side

    def reached(self, side: str) -> None:
        self.left -= side == self._side
        if side == self._side and not self.left:
            raise Killed


class InnerParts(OuterDaemon):
    """Answers `ask` and `do` as an outer worker of one process would."""

    def __init__(
        self,
        manifest: Manifest,
        num_parts: int,
        crashes: Mapping[int, Crash] | None = None,
        nodes: Sequence[int] = (),
    ) -> None:
        """`nodes`: parts on each machine."""
        nodes = tuple(nodes) or (1,) * num_parts
        self._manifest = manifest
        self._num_parts = num_parts
        self._next_request = 0
        self._placed = placed(nodes)
        plans = [make_plan(manifest, part) for part in self._placed]
        self.described = plans[0].described()
        self.buffers = OwnBuffers(plans, nodes)
        machines = [PartsMachine(count, NodeFiles(node)) for node, count in enumerate(nodes)]
        self.together = PartsTogether(num_parts, self._ask_part, self.buffers, machines)
        self.together.describe(self.described)
        self.deaths = 0
        self._crashes = dict(crashes or {})
        self._sent: list[list[Any]] = [[] for _ in range(num_parts)]
        self._workers = [self._started(part) for part in range(num_parts)]
        """No crash point is reached at the first start: it writes no journal."""

    def _started(self, part: int) -> Worker:
        plan = make_plan(self._manifest, self._placed[part])
        descriptors = self.buffers.descriptors(part)
        maps = {name: mmap.mmap(fd, size) for name, (fd, size) in descriptors.items()}
        sent = self._sent[part]
        sent.clear()
        worker = Worker(
            plan,
            MappedBuffers(plan, maps, {name: fd for name, (fd, _) in descriptors.items()}),
            Reporter(_Collector(sent)),
        )
        if part in self._crashes:
            worker._workspace.journal._crash = self._crashes[part]
        worker.handle(OpenState(self.number()))
        self.ready = self.together.opened(sent.pop())
        return worker

    def crash(self, part: int, crash: Crash) -> None:
        """Let this part reach `crash` from now on."""
        self._crashes[part] = crash
        self._workers[part]._workspace.journal._crash = crash

    async def _ask_part(self, part: int, request: Any) -> Any:
        try:
            self._workers[part].handle(on_machine(self.buffers.node_of[part], request))
            self._workers[part].finish()
        except Killed as killed:
            self._restart(part)
            raise WorkerError(f"part {part} is gone") from killed
        answer = self._sent[part].pop()
        if isinstance(answer, WorkerFailed):
            raise RequestRefused(answer.kind, answer.detail)
        return answer

    def _restart(self, part: int) -> None:
        while True:
            self.deaths += 1
            try:
                self._workers[part] = self._started(part)
            except Killed:
                continue
            return

    def ask(self, kind: type, *arguments: Any) -> Any:
        """Asks again when a part died over it, as the phase machine does."""
        request = kind(self.number(), *arguments)
        while True:
            try:
                answer = asyncio.run(self.together.ask(request))
                if isinstance(answer, StateReady):
                    self.buffers.lowrank_r = answer.lowrank_r
                return answer
            except RequestRefused as refused:
                return WorkerFailed(0, refused.kind, refused.detail)
            except WorkerError:
                continue

    def write_snapshot(self, directory: Path) -> Any:
        """Write the shared state to `directory` and wait for it."""
        return self.do(WriteSnapshot, str(directory))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.buffers.read(name, offset, self.buffers.size(name) - offset if length is None else length)

    def write(self, name: str, data: bytes, offset: int = 0) -> None:
        self.buffers.write(name, offset, data)

    def floats(self, name: str) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.read(name)), dtype=torch.float32)

    def __del__(self) -> None:
        if hasattr(self, "buffers"):
            self.close()  # a process of the tests makes hundreds of them, and may have 1,024 files open

    def close(self) -> None:
        self.buffers.close()


class _Collector:
    def __init__(self, sent: list[Any]) -> None:
        self._sent = sent

    def send(self, message: Any) -> None:
        if not isinstance(message, WorkerAlive):
            self._sent.append(message)
