"""Keeps p2pd alive: sees that it died or hangs, starts it again on its key and port, and gives up if that is too often.

A p2pd that stands still (stopped by a signal, or in a lock of its own) ends no connection and accepts more of them, so
nothing but its silence tells. Each of our calls has a time-out, but who waits for a peer cannot know who was mute.
"""

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.errors import ConfigError, PeerError, WorkerError
from dilocoxd.ipc.keep_alive import RestartBudget, keep_alive
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.telemetry.catalogue import Event, WorkerDied, WorkerStarted

RESTARTS_MAX: Final = 20
RESTART_WINDOW_S: Final = 600.0
RESTART_PAUSE_S: Final = 0.1
RESTART_PAUSE_MAX_S: Final = 10.0
ASK_EVERY_S: Final = 10.0
ANSWER_S: Final = 10.0
"""It answers this question from memory, within milliseconds."""
LATE_S: Final = 2.0
MUTE_MAX: Final = 3
"""Questions in a row, of ANSWER_S each, so that a p2pd that hangs is noticed after 30 to 40 s."""

OUR_OWN: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""We could not even ask."""


@dataclass(slots=True)
class Silence:
    """Questions in a row that p2pd left without an answer; decides only, the caller asks."""

    num_unanswered: int = 0

    def answered(self) -> None:
        """It serves."""
        self.num_unanswered = 0

    def unanswered(self, waited_s: float, limit_s: float) -> None:
        """None came within `limit_s`, after `waited_s` by our own clock. If that is much more, we stood still
        ourselves, and p2pd perhaps with us (the machine slept, the container was paused): that says nothing of it."""
        if waited_s <= limit_s + LATE_S:
            self.num_unanswered += 1

    def failed(self, error: PeerError, waited_s: float, limit_s: float) -> None:
        """How the question failed: a refusal is an answer; what our own process lacks says nothing of p2pd."""
        if error.__cause__ is None:
            self.answered()
        elif not (isinstance(error.__cause__, OSError) and error.__cause__.errno in OUR_OWN):
            self.unanswered(waited_s, limit_s)

    @property
    def is_hung(self) -> bool:
        """It has had all the time that it gets."""
        return self.num_unanswered >= MUTE_MAX


async def keep_p2pd(
    node: Node, is_stopped: asyncio.Event, on_restarted: Callable[[], None], emit: Callable[[Event], None]
) -> None:
    """Restart p2pd whenever it dies or hangs, but not once `is_stopped`: then what is left of the stop goes without it.

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
        return await _one_life(node)

    def lost(reason: str) -> None:
        emit(WorkerDied(worker="p2pd", pid=pid, reason=reason, restarts_left=budget.left))

    await keep_alive("p2pd", one_life, lost, budget, is_stopped)


async def _one_life(node: Node) -> str:
    """Why p2pd is gone: it died, or hung and was killed."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_kill_if_it_hangs(node), name="p2pd's answers")
        status = await node.wait_p2pd_death()
        watch.cancel()
    return f"exit status {status}" if watch.cancelled() else watch.result()


async def _kill_if_it_hangs(node: Node) -> str:
    """What it was killed for; returns only then."""
    clock, silence = asyncio.get_running_loop().time, Silence()
    while not silence.is_hung:
        asked_at = clock()
        try:
            connected = await node.connections(timeout_s=ANSWER_S)
            await node.end_unread(connected.keys())
        except PeerError as error:
            silence.failed(error, clock() - asked_at, ANSWER_S)
        else:
            silence.answered()
            asked_at = clock()  # an answer that came late is no reason to judge what moves by a shorter time
        if (left_s := asked_at + ASK_EVERY_S - clock()) > 0:
            await asyncio.sleep(left_s)
    if node.is_running:
        os.kill(node.p2pd_pid, signal.SIGKILL)
    return f"it answered nothing for {MUTE_MAX * ANSWER_S:g} s, and was killed"
