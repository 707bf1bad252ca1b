"""Answers of all GET paths: each asks the view and hands its value on. Decides nothing but paging and thinning."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from aiohttp import web

from dilocoxd.answers.fields import LossPoint
from dilocoxd.answers.history import LossCurves
from dilocoxd.answers.losses import mean_of_known
from dilocoxd.answers.site import Health
from dilocoxd.api import endpoints
from dilocoxd.api.interface import View
from dilocoxd.api.openapi import document
from dilocoxd.api.request_metrics import Usage
from dilocoxd.api.responses.columns import columns_in_steps, participation
from dilocoxd.api.responses.encoding import json_answer
from dilocoxd.api.responses.etags import BodyCache
from dilocoxd.api.responses.join_line import join_line
from dilocoxd.api.responses.problems import ProblemError, problem


def thinned(points: Sequence[LossPoint], count: int) -> Sequence[LossPoint]:
    """At most `count` points: last time and number of each stretch, mean of its known losses."""
    if len(points) <= count:
        return points
    found: list[LossPoint] = []
    for index in range(count):
        part = points[index * len(points) // count : (index + 1) * len(points) // count]
        found.append((part[-1][0], part[-1][1], mean_of_known(loss for _, _, loss in part)))
    return found


class Reading:
    """The handlers; names are those of the endpoints."""

    def __init__(self, view: View, cache: BodyCache, usage: Usage) -> None:
        self._view = view
        self._cache = cache
        self._usage = usage

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        if self._view.is_healthy:
            return json_answer(Health(ok=True))
        return problem(503, "Unhealthy", self._view.status().waiting_for)

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        if self._view.is_ready:
            return json_answer(Health(ok=True))
        status = self._view.status()
        return problem(503, "Not Ready", status.waiting_for or f"the daemon is {status.state}")

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(text=self._view.metrics() + self._usage.exposition(), headers=kind)

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        # 0.1 s of CPU, which few daemons are ever asked for.
        return await self._cache.answer(request, lambda: asyncio.to_thread(document, endpoints.ENDPOINTS))

    async def status(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.status))

    async def peers(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.peers))

    async def members(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.members))

    async def authorities(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.authorities))

    async def rounds(self, request: web.Request) -> web.StreamResponse:
        limit = endpoints.LIMIT.integer(request)
        first, before = endpoints.FROM.read(request), endpoints.BEFORE.read(request)
        if first is not None:
            rows = self._view.rounds(first, limit)
            after = f"from={rows[-1].round + 1}" if len(rows) == limit else ""
        else:
            rows = self._view.rounds_before(before, limit)
            after = f"before={rows[-1].round}" if len(rows) == limit and rows[-1].round > 0 else ""
        return await self._cache.answer(request, self._made(lambda: rows), next_page("/v1/rounds", after, limit))

    async def round_columns(self, request: web.Request) -> web.StreamResponse:
        first = endpoints.FIRST.integer(request)
        return await self._cache.answer(
            request, lambda: columns_in_steps(self._view.rounds(first, endpoints.COLUMNS_MAX))
        )

    async def participation(self, request: web.Request) -> web.StreamResponse:
        limit = endpoints.LIMIT.integer(request)
        # One more than asked for: the newest one is mostly under way.
        return await self._cache.answer(
            request, self._made(lambda: participation(self._view.rounds_before(None, limit + 1)))
        )

    async def join(self, request: web.Request) -> web.StreamResponse:
        status = self._view.status()
        directory = self._view.config().run_directory
        return await self._cache.answer(
            request, self._made(lambda: join_line(status.join_address, status.admission, directory))
        )

    async def round_(self, request: web.Request) -> web.StreamResponse:
        index = endpoints.ROUND.integer(request)
        row = self._view.round(index)
        if row is None:
            raise ProblemError(404, "Not Found", f"this daemon knows nothing of round {index}; see /v1/log")
        return await self._cache.answer(request, self._made(lambda: row))

    async def losses(self, request: web.Request) -> web.StreamResponse:
        points = endpoints.POINTS.read(request) or endpoints.POINTS_MAX

        def thin() -> LossCurves:
            whole = self._view.losses()
            return LossCurves(
                inner=thinned(whole.inner, points),
                validation=thinned(whole.validation, points),
                sites=[replace(site, points=thinned(site.points, points)) for site in whole.sites],
            )

        return await self._cache.answer(request, self._made(thin))

    async def timeline(self, request: web.Request) -> web.StreamResponse:
        since = endpoints.SINCE.integer(request)
        return await self._cache.answer(
            request, self._made(lambda: [span for span in self._view.timeline() if span.end > since])
        )

    async def sites_timeline(self, request: web.Request) -> web.StreamResponse:
        since = endpoints.SINCE.integer(request)
        return await self._cache.answer(request, self._made(lambda: self._view.swarm_timeline(since)))

    async def alerts(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.alerts))

    async def past_alerts(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.past_alerts))

    async def recent_events(self, request: web.Request) -> web.StreamResponse:
        limit = endpoints.EVENTS_LIMIT.integer(request)
        return await self._cache.answer(request, self._made(lambda: self._view.recent_events(limit)))

    async def log(self, request: web.Request) -> web.StreamResponse:
        limit, before = endpoints.LOG_LIMIT.integer(request), endpoints.BEFORE.read(request)
        rows = await self._view.log(before, limit)
        after = f"before={rows[-1].round}" if len(rows) == limit and rows[-1].round > 0 else ""
        return await self._cache.answer(request, self._made(lambda: rows), next_page("/v1/log", after, limit))

    async def log_entry(self, request: web.Request) -> web.StreamResponse:
        index = endpoints.ROUND.integer(request)
        row = await self._view.log_entry(index)
        if row is None:
            raise ProblemError(404, "Not Found", f"entry {index} is not in the log of this site")
        return await self._cache.answer(request, self._made(lambda: row))

    async def snapshots(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._view.snapshots)

    async def profile(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.profile))

    async def sample(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.sample))

    async def config(self, request: web.Request) -> web.StreamResponse:
        return await self._cache.answer(request, self._made(self._view.config))

    @staticmethod
    def _made(make: Callable[[], object]) -> Callable[[], Awaitable[object]]:
        async def value() -> object:
            return make()

        return value


def next_page(path: str, after: str, limit: int) -> dict[str, str]:
    """Link header (RFC 8288) to the page after this one; nothing on the last one."""
    return {"Link": f'<{path}?{after}&limit={limit}>; rel="next"'} if after else {}
