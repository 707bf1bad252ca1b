"""The outer worker is told to stop at any moment, also when there is none to be told."""

import asyncio
from pathlib import Path
from typing import Any

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.outer_worker import OuterSettings, OuterWorker
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
