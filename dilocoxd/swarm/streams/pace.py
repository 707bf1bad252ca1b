"""Bounds how long an answer may take by what has come of it: who trickles is given up, who is slow but steady is not.

A fixed time for the largest answer would let a peer hold a small one open for as long. Every piece that comes buys time
instead, and speed of before is no credit. Rules S3, L16, X14.
"""

import asyncio


class AnswerPace:
    """Of one answer, or of several from one peer; `came` and `allow` buy time."""

    def __init__(self, start_s: float, bytes_per_s: float) -> None:
        """`start_s`: so long there may be nothing, at any moment; who was fast before has no more than that ahead."""
        self.bytes_received = 0
        self._start_s = start_s
        self._bytes_per_s = bytes_per_s
        self._limit = asyncio.timeout(None)

    def begin(self) -> asyncio.Timeout:
        """The time from now on, to be entered: TimeoutError when it is over."""
        self._limit = asyncio.timeout(self._start_s)
        return self._limit

    def came(self, num_bytes: int) -> None:
        """So many bytes more."""
        self.bytes_received += num_bytes
        self.allow(num_bytes / self._bytes_per_s)

    def is_whole(self) -> None:
        """All has come: what we do with it takes as long as it takes."""
        if not self._limit.expired():
            self._limit.reschedule(None)

    def allow(self, seconds: float) -> None:
        """So much longer, for something else than bytes."""
        ends_at = self._limit.when()
        if ends_at is not None and not self._limit.expired():
            latest = asyncio.get_running_loop().time() + self._start_s
            self._limit.reschedule(min(ends_at, latest) + seconds)
