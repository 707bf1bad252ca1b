"""Keeps p2pd alive: sees its death, starts it again on the same key and port, and gives up when it dies too often."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from dilocoxd.errors import ConfigError, PeerError, WorkerError
from dilocoxd.swarm.kademlia import Node
from dilocoxd.telemetry.catalogue import Event, WorkerDied, WorkerStarted

RESTARTS_MAX: Final = 20
RESTART_WINDOW_S: Final = 600.0
RESTART_PAUSE_S: Final = 0.5
RESTART_PAUSE_MAX_S: Final = 10.0


async def keep_p2pd(
    node: Node, is_stopped: asyncio.Event, on_restarted: Callable[[], None], emit: Callable[[Event], None]
) -> None:
    """Restart p2pd whenever it dies, but not once `is_stopped`: then what is left of the stop goes without it.

    Runs until cancelled. Raises WorkerError when the restart budget is spent.
    """
    deaths: deque[float] = deque()
    clock = asyncio.get_running_loop().time

    def note_death(pid: int, reason: str) -> None:
        deaths.append(clock())
        while deaths[0] < clock() - RESTART_WINDOW_S:
            deaths.popleft()
        emit(WorkerDied(worker="p2pd", pid=pid, reason=reason, restarts_left=max(0, RESTARTS_MAX - len(deaths))))
        if len(deaths) > RESTARTS_MAX:
            raise WorkerError(f"p2pd died {len(deaths)} times within {RESTART_WINDOW_S:g} s; last: {reason}")

    while True:
        pid = node.p2pd_pid
        note_death(pid, f"exit status {await node.wait_p2pd_death()}")
        while not is_stopped.is_set():
            try:
                await node.start()
                break
            except (WorkerError, PeerError, ConfigError) as error:  # ConfigError: the port is not free again yet
                note_death(0, str(error))
                await asyncio.sleep(min(RESTART_PAUSE_MAX_S, RESTART_PAUSE_S * len(deaths)))
        if is_stopped.is_set():
            return
        emit(WorkerStarted(worker="p2pd", pid=node.p2pd_pid, generation=node.num_starts))
        on_restarted()
