"""Ends tasks that wait inside hivemind: one cancellation may not be enough."""

import asyncio
from collections.abc import Sequence
from typing import Final

CANCEL_AGAIN_S: Final = 0.5


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel until all are over: wait_for of Python 3.11 swallows a cancellation that comes with its result."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
