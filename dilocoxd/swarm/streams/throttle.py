"""Upload limits: a token bucket that every bulk piece waits for, and how serving makes way for exchanges."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

SERVING_SHARE: Final = 0.1
"""Part of the measured upload speed that serving may take while an exchange sends: what delays a round."""
SERVING_PAUSE_MAX_S: Final = 2.0
"""Longest wait for one piece, so that whoever fetches it sees progress."""
SLICE_S: Final = 0.05


class TokenBucket:
    """At most `bytes_per_s` on average, `burst_bytes` at once; 0 = no limit. First come, first served."""

    def __init__(self, bytes_per_s: float, *, burst_bytes: int = 1024 * 1024) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._free_at = 0.0
        """When the bucket will be full again, were nothing more taken."""

    async def take(self, num_bytes: int) -> None:
        """Return when `num_bytes` may be sent."""
        if self.bytes_per_s <= 0:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + num_bytes / self.bytes_per_s
        wait_s = self._free_at - now - self._burst_bytes / self.bytes_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class ServingLimit:
    """What serving (manifest, chain, snapshots) may send: a bucket of its own, and little while an exchange sends."""

    def __init__(self, bytes_per_s_max: float, exchange_speed: Callable[[], float | None]) -> None:
        """`exchange_speed`: bytes per second of the exchange that is sending now (0 = not known yet); None = none."""
        self._own = TokenBucket(bytes_per_s_max)
        self._exchange_speed = exchange_speed
        self.upload: Callable[[int], Awaitable[None]] | None = None
        """The limit that exchanges and serving share; None: there is none."""

    async def take(self, num_bytes: int) -> None:
        """Return when `num_bytes` may be sent."""
        await self._own.take(num_bytes)
        clock = asyncio.get_running_loop().time
        started = clock()
        while (speed := self._exchange_speed()) is not None:
            pause_s = min(SERVING_PAUSE_MAX_S, num_bytes / (SERVING_SHARE * speed) if speed else SERVING_PAUSE_MAX_S)
            left_s = started + pause_s - clock()
            if left_s <= 0:
                break
            await asyncio.sleep(min(SLICE_S, left_s))
        if self.upload is not None:
            await self.upload(num_bytes)
