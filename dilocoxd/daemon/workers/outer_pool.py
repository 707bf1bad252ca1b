"""Keeps several outer parts running, and offers what one outer worker does (daemon/workers/outer_worker.py).

Each part has a life and a restart budget of its own; the site hears that the outer worker is lost when one is, and that
it is back when all are. What they do together is in outer_parts.py.
"""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import WorkerPlace
from dilocoxd.daemon.workers.local_server import Connection, WorkerHandler
from dilocoxd.daemon.workers.machine_files import PartsMachine
from dilocoxd.daemon.workers.outer_parts import PartsTogether
from dilocoxd.daemon.workers.outer_worker import OuterListener, OuterSettings, OuterWorker
from dilocoxd.errors import WorkerError
from dilocoxd.wire.local import outer_worker as local, worker as local_worker


class _PartListener:
    """Passes on which part it was."""

    def __init__(self, pool: "OuterPool", part: int) -> None:
        self.outer_described = pool.part_described
        self.outer_started = functools.partial(pool.part_started, part)
        self.outer_lost = functools.partial(pool.part_lost, part)


class PoolBudget:
    """The restart budgets of all parts as one."""

    def __init__(self, settings: Sequence[OuterSettings]) -> None:
        self._budgets = [each.budget for each in settings]

    @property
    def total(self) -> int:
        """Restarts of all parts."""
        return sum(budget.total for budget in self._budgets)

    @property
    def left(self) -> int:
        """Restarts that the part with the fewest has left."""
        return min(budget.left for budget in self._budgets)


class OuterPool:
    """`run` keeps all parts alive; `ask` is for everybody."""

    def __init__(
        self,
        settings: Sequence[OuterSettings],
        places: Sequence[WorkerPlace],
        buffers: Buffers,
        listener: OuterListener,
        machines: Sequence[PartsMachine] = (),
    ) -> None:
        """`settings`: of each part, with its own restart budget; `places`: where each runs; `machines`: as in
        PartsTogether."""
        self.pid = 0
        """Of the part that was started or lost last."""
        self.restarts = PoolBudget(settings)
        self.parts = [
            OuterWorker(each, place, buffers, _PartListener(self, part))
            for part, (each, place) in enumerate(zip(settings, places, strict=True))
        ]
        self.ended = asyncio.Event()
        """Set when `run` is over."""
        self._listener = listener
        self._up: set[int] = set()
        self._changed = asyncio.Event()
        self._together = PartsTogether(len(settings), self._ask_part, buffers, machines)

    @property
    def is_up(self) -> bool:
        """All parts have their buffers and answer requests: false as soon as one has died, before it is buried."""
        return len(self._up) == len(self.parts) and all(part.is_up for part in self.parts)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the parts that run, in order."""
        return tuple(part.pid for part in self.parts if part.pid)

    @property
    def generation(self) -> int:
        """Starts of the part that was started most often."""
        return max(part.generation for part in self.parts)

    def admit(self, hello: local_worker.WorkerHello, connection: Connection) -> WorkerHandler | None:
        """Let in the part that we started last under this number, once."""
        if hello.num_stages != len(self.parts) or hello.stage_rank >= len(self.parts):
            return None
        return self.parts[hello.stage_rank].admit(hello, connection)

    async def ask(self, request: Any, *, timeout_s: float) -> Any:
        """The answer of all parts, from those that run, or when all run again.

        Raises RequestRefused, WorkerError when one dies meanwhile or `timeout_s` is over.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_up:
                    self._changed.clear()
                    await self._changed.wait()
                return await self._together.ask(request)
        except TimeoutError as error:
            raise WorkerError(
                f"the outer worker did not answer {type(request).__name__} within {timeout_s:.0f} s"
            ) from error

    async def ask_present(self, request: Any) -> Any:
        """The answer of the parts that run now; WorkerError at once unless all do. No time-out but silence."""
        if not self.is_up:
            raise WorkerError("the outer worker is starting")
        return await self._together.ask(request)

    async def _ask_part(self, part: int, request: Any) -> Any:
        return await self.parts[part].ask_present(request)

    async def run(self) -> None:
        """Until `stop`. Raises, in a group, WorkerError when a restart budget is spent, and ConfigError."""
        try:
            async with asyncio.TaskGroup() as group:
                for number, part in enumerate(self.parts):
                    group.create_task(part.run(), name=f"outer part {number}")
        finally:
            self.ended.set()

    def holder(self, segment: int) -> OuterWorker:
        """The part that has this segment."""
        return self.parts[self._together.holder(segment)]

    def segments(self, part: int) -> range:
        """That this part has; none before it has described them."""
        return self._together.segments(part)

    def stop(self) -> None:
        """Ask all to end by themselves; `run` returns when they have."""
        for part in self.parts:
            part.stop()

    # --- what the parts say -------------------------------------------------------------------------------------------

    def part_described(self, description: local.Described) -> None:
        """The same from each."""
        self._together.describe(description)
        self._listener.outer_described(description)

    def part_started(self, part: int, state: local.StateReady) -> None:
        """Attached; its journal is in order."""
        self.pid = self.parts[part].pid
        self._up.add(part)
        held = self._together.opened(state)
        if self.is_up:
            self._changed.set()
            self._listener.outer_started(held)

    def part_lost(self, part: int, reason: str) -> None:
        """Dead and buried."""
        self.pid = self.parts[part].pid
        self._up.discard(part)
        self._listener.outer_lost(f"part {part}{self.parts[part].where}: {reason}")
