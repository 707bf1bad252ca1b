"""Upload limit: a token bucket that every bulk piece waits for."""

import asyncio


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
