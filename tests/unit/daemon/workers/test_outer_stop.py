"""The outer worker is told to stop at any moment, also when there is none to be told."""

import asyncio
import gc
from pathlib import Path
from typing import Any

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.outer_worker import OuterSettings, OuterWorker
from dilocoxd.errors import WorkerError
from dilocoxd.ipc.keep_alive import RestartBudget


class Ended:
    """A place whose workers have ended before anybody looks; also the listener, who hears of it."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    where = ""

    async def start(self, launch: ForkLaunch) -> Workers:
        over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.1, over.set_result, 0)
        return Workers(launch.mark, (2**22 + 1,), (over,), lambda reason: None)

    def note_attached(self) -> None: ...

    def note_fault(self, why: str) -> None: ...

    def outer_described(self, description: Any) -> None: ...

    def outer_started(self, state: Any) -> None: ...

    def outer_lost(self, reason: str) -> None:
        self.lost.set()


async def test_stop_in_the_pause_after_one_that_never_came(tmp_path: Path) -> None:
    ended, budget = Ended(), RestartBudget(9, 3600.0, 3600.0, 3600.0)
    launch = ForkLaunch("nothing", ({},), tmp_path / "log", "mark-of-nobody", "")
    outer = OuterWorker(OuterSettings(lambda generation: launch, budget, 0.0, 60.0), ended, Buffers(), ended)
    async with asyncio.timeout(900), asyncio.TaskGroup() as group:
        group.create_task(outer.run())
        await ended.lost.wait()
        outer.stop()
    assert outer.ended.is_set()


class Nowhere(Ended):
    """A place that starts nothing until it is told that it cannot any more."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gone = asyncio.Event(), asyncio.Event()

    async def start(self, launch: ForkLaunch) -> Workers:
        self.asked.set()
        await self.gone.wait()
        raise WorkerError("the site stops")


async def test_stop_before_there_is_a_process_leaves_no_error_behind(tmp_path: Path) -> None:
    """Ctrl-C in the first seconds ended with a `Future exception was never retrieved` on the terminal."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    place, budget = Nowhere(), RestartBudget(9, 3600.0, 3600.0, 3600.0)
    launch = ForkLaunch("nothing", ({},), tmp_path / "log", "mark-of-nobody", "")
    outer = OuterWorker(OuterSettings(lambda generation: launch, budget, 0.0, 60.0), place, Buffers(), place)
    async with asyncio.timeout(900), asyncio.TaskGroup() as group:
        group.create_task(outer.run())
        await place.asked.wait()
        outer.stop()
        place.gone.set()
    del outer
    gc.collect()
    assert not told
