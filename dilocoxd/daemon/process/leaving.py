"""How long a daemon that stops waits for the round machine to leave."""

import asyncio
from typing import Any, Final

from dilocoxd.ipc.keep_alive import is_set_within

GOODBYE_S: Final = 0.5
"""For what needs no worker, a goodbye to the others."""


async def has_left(left: asyncio.Event, site: asyncio.Task[Any], limit_s: float) -> bool:
    """Whether `left` is set within `limit_s`.

    Where the site has ended, before or meanwhile, only GOODBYE_S: what is formed, summed or applied then waits for
    workers that will not come, and so would we.
    """
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(left.wait(), name="round machine to leave")
        await asyncio.wait([leaving, site], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
    return left.is_set() or (site.done() and await is_set_within(left, GOODBYE_S))
