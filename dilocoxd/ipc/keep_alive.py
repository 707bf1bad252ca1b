"""Keeps a process alive: one life after the other, so many per window, with a pause that doubles.

The same for everything that a daemon starts: the fork server, what it forks, and p2pd.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import WorkerError
from dilocoxd.ids import Monotonic

EXCUSED_KEPT: Final = 16
"""Times of excused restarts: more of them make no pause longer."""


@dataclass(slots=True)
class RestartBudget:
    """So many restarts per window, with a pause that doubles: decides only, the caller sleeps."""

    restarts_max: int
    window_s: float
    backoff_first_s: float = 0.5
    backoff_max_s: float = 30.0
    excused_pause_max_s: float = 5.0
    total: int = 0
    _excused: deque[float] = field(default_factory=deque)
    _is_excused: bool = False
    _times: deque[float] = field(default_factory=deque)

    @property
    def left(self) -> int:
        """Restarts that the window still has room for, as of the last one."""
        return max(0, self.restarts_max - len(self._times))

    def next_delay(self, now: Monotonic) -> float | None:
        """Seconds to wait before the restart that is counted now; None: the budget is spent."""
        if self._is_excused:
            return self._after_excuse(now)
        while self._times and self._times[0] <= now - self.window_s:
            self._times.popleft()
        if len(self._times) >= self.restarts_max:
            return None
        delay = min(self.backoff_max_s, self.backoff_first_s * float(2 ** len(self._times)))
        self._times.append(now)
        self.total += 1
        return delay

    def excuse(self) -> None:
        """The life that ends now did not fail: its restart spends nothing, however often that happens."""
        self._is_excused = True

    def _after_excuse(self, now: Monotonic) -> float:
        self._is_excused = False
        while self._excused and self._excused[0] <= now - self.window_s:
            self._excused.popleft()
        delay = min(self.excused_pause_max_s, self.backoff_first_s * float(2 ** min(len(self._excused), 10)))
        self._excused.append(now)
        while len(self._excused) > EXCUSED_KEPT:
            self._excused.popleft()
        self.total += 1
        return delay


async def keep_alive(
    name: str,
    one_life: Callable[[], Awaitable[str]],
    lost: Callable[[str], None],
    budget: RestartBudget,
    is_stopped: asyncio.Event,
) -> None:
    """One life after the other until `is_stopped`, which the present life must see for itself.

    `one_life` says why it ended; `lost` hears of it once the restart is counted. Raises WorkerError when the budget is
    spent, and what `one_life` raises.
    """
    clock = asyncio.get_running_loop().time
    while True:
        reason = await one_life()
        delay = 0.0 if is_stopped.is_set() else budget.next_delay(Monotonic(clock()))
        lost(reason)
        if delay is None:
            raise WorkerError(f"{name} died too often, at last: {reason}")
        if await is_set_within(is_stopped, delay):
            return


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event` for so long; True if it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
