"""Keeps p2pd alive: sees its death, starts it again on the same key and port, and gives up when it dies too often."""

import asyncio
from collections.abc import Callable
from typing import Final

from dilocoxd.errors import ConfigError, PeerError, WorkerError
from dilocoxd.ipc.keep_alive import RestartBudget, keep_alive
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.telemetry.catalogue import Event, WorkerDied, WorkerStarted

RESTARTS_MAX: Final = 20
RESTART_WINDOW_S: Final = 600.0
RESTART_PAUSE_S: Final = 0.1
RESTART_PAUSE_MAX_S: Final = 10.0


async def keep_p2pd(
    node: Node, is_stopped: asyncio.Event, on_restarted: Callable[[], None], emit: Callable[[Event], None]
) -> None:
    """Restart p2pd whenever it dies, but not once `is_stopped`: then what is left of the stop goes without it.

    It runs already. Runs until cancelled. Raises WorkerError when the restart budget is spent.
    """
    budget = RestartBudget(RESTARTS_MAX, RESTART_WINDOW_S, RESTART_PAUSE_S, RESTART_PAUSE_MAX_S)
    pid = node.p2pd_pid

    async def one_life() -> str:
        nonlocal pid
        if not node.is_running:
            pid = 0
            try:
                await node.start()
            except (WorkerError, PeerError, ConfigError) as error:  # ConfigError: the port is not free again yet
                return str(error)
            pid = node.p2pd_pid
            emit(WorkerStarted(worker="p2pd", pid=pid, generation=node.num_starts))
            on_restarted()
        return f"exit status {await node.wait_p2pd_death()}"

    def lost(reason: str) -> None:
        emit(WorkerDied(worker="p2pd", pid=pid, reason=reason, restarts_left=budget.left))

    await keep_alive("p2pd", one_life, lost, budget, is_stopped)
