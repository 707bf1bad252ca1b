"""What a vote wants on disk and may find there: written while the exchange runs, as long as the vote is not due."""

import asyncio
from collections.abc import Callable
from typing import Final

from dilocoxd.daemon.chain.payload_map import Place


class EarlyWrites:
    """One at a time, in a thread: a slow disk shall not keep all threads from those who read and send.

    A place that waits already waits once, so attempts that fail leave no more than a writing for each place.
    """

    def __init__(self) -> None:
        self.turn: Final = asyncio.Lock()
        """Held by who writes, early or not."""
        self._waiting: set[Place] = set()

    async def write(self, place: Place, write: Callable[[], object]) -> None:
        """What is at `place` when its turn comes, unless it is called off before."""
        if place in self._waiting:
            return
        self._waiting.add(place)
        async with self.turn:
            if place in self._waiting:
                self._waiting.discard(place)
                await asyncio.to_thread(write)

    def call_off(self) -> None:
        """What has not begun will be written by the vote, or is of an attempt that is over."""
        self._waiting.clear()
