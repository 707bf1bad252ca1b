"""Says on the terminal how it goes; what and when is decided in observe/ticker.py."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from dilocoxd.answers.rounds import RoundRow
from dilocoxd.answers.status import Status
from dilocoxd.daemon.observe.ticker import Ticker, look_again_s

ROWS: Final = 4
"""The newest round that is committed is among so many: the ones before it are under way."""


async def narrate(
    status: Callable[[], Status], newest: Callable[[int], Sequence[RoundRow]], say: Callable[[str], None]
) -> None:
    """Until cancelled. `newest(n)`: the newest rows, ascending."""
    clock, ticker = asyncio.get_running_loop().time, Ticker()
    while True:
        done = [row for row in newest(ROWS) if row.committed_at > 0]
        seen = status()
        line = ticker.look(seen, done[-1] if done else None, clock())
        if line:
            say(line)
        await asyncio.sleep(look_again_s(seen))
