"""The HTTP API v1: decides paths, limits and error form; every value comes from the daemon's read model.

Loopback by default, GET only, answers are built in memory from bounded history. Errors are problem+json (RFC 9457).
Source: docs/internals.md section 6.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from aiohttp import web

PAGE_MAX: Final = 1000
PAGE_DEFAULT: Final = 100
REQUEST_BYTES_MAX: Final = 64 * 1024
PROBLEM_TYPE: Final = "application/problem+json"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class View(Protocol):
    """What the daemon shows. All methods are cheap, synchronous and side-effect free."""

    @property
    def is_healthy(self) -> bool:
        """Loop and supervisor live."""

    @property
    def is_ready(self) -> bool:
        """The site trains with the swarm."""

    def status(self) -> dict[str, Any]:
        """GET /v1/status."""

    def peers(self) -> list[dict[str, Any]]:
        """GET /v1/peers."""

    def rounds(self, first: int, limit: int) -> list[dict[str, Any]]:
        """GET /v1/rounds, ascending from round `first`."""

    def losses(self) -> dict[str, Any]:
        """GET /v1/losses."""

    def timeline(self) -> list[dict[str, Any]]:
        """GET /v1/timeline."""

    def metrics(self) -> str:
        """GET /metrics, Prometheus text."""


VIEW: Final = web.AppKey("view", View)


def problem(status: int, title: str, detail: str) -> web.Response:
    """An error answer."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return web.json_response(body, status=status, content_type=PROBLEM_TYPE)


def integer(request: web.Request, name: str, default: int, high: int) -> int:
    """Query parameter as an integer in 0..high. Raises ValueError with a sentence for the caller."""
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise ValueError(f"query parameter {name} is {text[:40]!r}; give a whole number from 0 to {high}")
    return min(int(text), high)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every refusal into problem+json and forbids caching of live state."""
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        if refusal.status < 400:
            raise
        detail = f"{request.method} {request.path} is not part of this API; see /v1/status"
        return problem(refusal.status, refusal.reason, detail)
    except ValueError as error:
        return problem(400, "Bad Request", str(error))
    response.headers["Cache-Control"] = "no-store"
    return response


async def healthz(request: web.Request) -> web.Response:
    if request.app[VIEW].is_healthy:
        return web.json_response({"ok": True})
    return problem(503, "Unhealthy", request.app[VIEW].status()["waiting_for"])


async def readyz(request: web.Request) -> web.Response:
    if request.app[VIEW].is_ready:
        return web.json_response({"ok": True})
    return problem(503, "Not Ready", request.app[VIEW].status()["waiting_for"])


async def metrics(request: web.Request) -> web.Response:
    text = request.app[VIEW].metrics()
    return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def status(request: web.Request) -> web.Response:
    return web.json_response(request.app[VIEW].status())


async def peers(request: web.Request) -> web.Response:
    return web.json_response(request.app[VIEW].peers())


async def rounds(request: web.Request) -> web.Response:
    first = integer(request, "from", 0, 2**60)
    limit = integer(request, "limit", PAGE_DEFAULT, PAGE_MAX)
    return web.json_response(request.app[VIEW].rounds(first, limit))


async def losses(request: web.Request) -> web.Response:
    return web.json_response(request.app[VIEW].losses())


async def timeline(request: web.Request) -> web.Response:
    return web.json_response(request.app[VIEW].timeline())


def create_api(view: View) -> web.Application:
    """The aiohttp application; further parts (event stream, control) add their own routes to it."""
    app = web.Application(middlewares=[problems], client_max_size=REQUEST_BYTES_MAX)
    app[VIEW] = view
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.get("/v1/status", status),
            web.get("/v1/peers", peers),
            web.get("/v1/rounds", rounds),
            web.get("/v1/losses", losses),
            web.get("/v1/timeline", timeline),
        ]
    )
    return app
