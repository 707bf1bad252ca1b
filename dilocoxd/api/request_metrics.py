"""Counts what the API itself is asked and how long its answers take, for /metrics."""

import asyncio
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from dilocoxd.api.responses.problems import Handler
from dilocoxd.telemetry.metrics import API_REQUEST_SECONDS, API_REQUESTS

BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
STREAM_PATH: Final = "/v1/events"
"""Lasts for hours: counted, but not timed."""


class Usage:
    """Counters of one API."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(API_REQUESTS[1], API_REQUESTS[3], API_REQUESTS[2], registry=self._registry)
        self._seconds = Histogram(
            API_REQUEST_SECONDS[1], API_REQUEST_SECONDS[3], buckets=BUCKETS, registry=self._registry
        )

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Outermost, so that it sees refusals as the client does."""
        clock = asyncio.get_running_loop().time
        started, status = clock(), 500
        try:
            response = await handler(request)
            status = response.status
        finally:
            self._requests.labels(f"{status // 100}xx").inc()
            if request.path != STREAM_PATH:
                self._seconds.observe(clock() - started)
        return response

    def exposition(self) -> str:
        """To be appended to the daemon's own metrics."""
        return generate_latest(self._registry).decode("ascii")
