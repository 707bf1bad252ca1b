"""Processes that the fork server started: what to start, how they ended, and how they are ended."""

import asyncio
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from dilocoxd.daemon.workers.supervisor import describe_exit
from dilocoxd.errors import WorkerError
from dilocoxd.ipc.process_tree import find_tree, kill_tree

OUTER_MODULE: Final = "dilocoxd.outerworker.main"
"""What an outer worker, or a part of one, runs; on every machine of the site."""
TRAINER_MODULE: Final = "dilocoxd.trainer.main"
"""What a rank of the trainers runs, likewise."""
PIPELINE_MODULE: Final = "torch.distributed.pipelining"
"""What the ranks of a pipeline would import after each fork."""
FIRST_EXIT_S: Final = 0.2
"""The end of a worker's socket comes some milliseconds before its exit status, which tells what it died of."""
BURY_S: Final = 5.0
"""Exit statuses of killed processes come at once from a fork server that is well."""


@dataclass(frozen=True, slots=True)
class ForkLaunch:
    """What to fork: one process for each environment, all with one log and one mark."""

    module: str
    """Its `main()` is called."""
    environments: tuple[Mapping[str, str], ...]
    """On top of the daemon's own."""
    log_path: Path
    mark: str
    """Unique for each start."""
    header: str = ""
    """First line of what this start writes to the log."""
    passed: Mapping[str, int] = field(default_factory=dict)
    """Descriptors that the first process gets; it finds each one's number in this variable."""


class Workers:
    """The processes of one ForkLaunch."""

    def __init__(
        self, mark: str, pids: tuple[int, ...], exits: tuple[asyncio.Future[int], ...], hung: Callable[[str], None]
    ) -> None:
        """`exits`: exit statuses, or WorkerError when nobody will tell them; `hung` is called when nobody does."""
        self.pids = pids
        self._mark = mark
        self._exits = exits
        self._hung = hung
        self._over: list[int] = []
        """Places in `exits`, in the order in which they ended."""
        for index, future in enumerate(exits):
            future.add_done_callback(functools.partial(self._note_over, index))

    async def first_exit(self) -> str:
        """How the first of them ended, and which one it was if there are several."""
        await asyncio.wait(self._exits, return_when=asyncio.FIRST_COMPLETED)
        return self._told()

    async def end(self, *, grace_s: float) -> str:
        """Wait `grace_s` for them to leave by themselves, then SIGKILL what is left; how they ended before that.

        Cancelled or not, nothing of them lives on.
        """
        try:
            await asyncio.wait(self._exits, timeout=FIRST_EXIT_S, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(self._exits, timeout=grace_s)
            killed = await asyncio.to_thread(self.living)  # a late fork server tells of the others after these
            await asyncio.to_thread(kill_tree, self._mark)
            _, missing = await asyncio.wait(self._exits, timeout=BURY_S)
        except asyncio.CancelledError:
            kill_tree(self._mark)  # blocks the loop for some 50 ms
            raise
        if missing:
            self._hung(f"it did not tell within {BURY_S:g} s that killed workers ended")
        return self._told(besides=killed) or "it was killed"

    @classmethod
    def together(cls, parts: Sequence["Workers"]) -> "Workers":
        """Those of several launches with one mark, as if they were one; in the order of `parts`."""
        if len(parts) == 1:
            return parts[0]
        pids = tuple(pid for part in parts for pid in part.pids)
        exits = tuple(each for part in parts for each in part._exits)
        return cls(parts[0]._mark, pids, exits, parts[0]._hung)

    def living(self) -> dict[int, int]:
        """Place in the launch -> pid, of those that still run. Blocks for some 50 ms."""
        found = set(find_tree(self._mark))  # a pid that is over may be somebody else's by now
        return {index: pid for index, pid in enumerate(self.pids) if pid in found}

    @property
    def statuses(self) -> tuple[int, ...]:
        """Exit statuses of those that are over and known; negative: killed by that signal."""
        return tuple(f.result() for f in self._exits if f.done() and f.exception() is None)

    def status(self, index: int) -> int | None:
        """Of one of them; None: it runs, or nobody knows."""
        future = self._exits[index]
        return future.result() if future.done() and future.exception() is None else None

    def _note_over(self, index: int, _: asyncio.Future[int]) -> None:
        self._over.append(index)

    def _told(self, besides: Collection[int] = ()) -> str:
        """How those that are over ended, the first one first: the others may have died of that. Empty if none is.
        `besides`: places of those that count for nothing."""
        told = []
        for index in self._over:
            if index in besides:
                continue
            error = self._exits[index].exception()
            if error is not None:
                return str(error)
            name = f"process {index}: " if len(self._exits) > 1 else ""
            told.append(name + describe_exit(self._exits[index].result()))
        return ", ".join(told)


class PlaceLost(WorkerError):
    """What a worker left there is gone: no restart of it alone helps."""


class WorkerPlace(Protocol):
    """Where a worker runs: this machine (fork_server.py), or a node of the site (daemon/head/place.py)."""

    @property
    def where(self) -> str:
        """For people, behind the name of what runs there; empty: this machine."""

    async def start(self, launch: ForkLaunch) -> Workers:
        """The running processes of `launch`. Raises WorkerError; then none of them runs. PlaceLost: none ever will."""

    def note_attached(self) -> None:
        """The worker has its buffers: the next one is of use only where they are."""

    def note_fault(self, why: str) -> None:
        """The machine where it ran is at fault, and the worker is not."""
