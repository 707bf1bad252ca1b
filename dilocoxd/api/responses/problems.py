"""Decides how every refusal looks: a problem document (RFC 9457) with one sentence that says what to do."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from dilocoxd.answers.site import Problem
from dilocoxd.api.responses.encoding import encoded
from dilocoxd.errors import CommandRefused

PROBLEM_TYPE: Final = "application/problem+json"
HANDLER_S: Final = 20.0
"""Reading the request and making the answer; the daemon's answers are made in milliseconds."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProblemError(Exception):
    """Becomes the answer; raised anywhere in a handler."""

    def __init__(self, status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.headers = headers or {}

    def response(self) -> web.Response:
        """As the HTTP answer."""
        return problem(self.status, self.title, self.detail, self.headers)


def problem(status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error answer."""
    body = encoded(Problem(type="about:blank", title=title, status=status, detail=detail))
    return web.Response(body=body, status=status, content_type=PROBLEM_TYPE, headers=headers)


def bad_request(detail: str) -> ProblemError:
    """400 with one sentence."""
    return ProblemError(400, "Bad Request", detail)


_EXPLAINED: Final = {
    404: "is not part of this API; see /v1/openapi.json",
    405: "is not allowed; see /v1/openapi.json for the methods of each path",
    413: "is too large; requests of this API have at most some kilobytes",
}


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every refusal into a problem document and forbids caches to keep live state."""
    try:
        response = await _bounded(request, handler)
    except ProblemError as refusal:
        return refusal.response()
    except CommandRefused as refusal:
        return problem(409, "Conflict", str(refusal))
    except TimeoutError:
        return problem(408, "Request Timeout", "the request did not arrive in time; send it again")
    except web.HTTPException as refusal:
        if refusal.status < 400:
            raise
        allowed = {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}
        explained = _EXPLAINED.get(refusal.status, "was refused")
        return problem(refusal.status, refusal.reason, f"{request.method} {request.path[:200]} {explained}", allowed)
    if not response.prepared:
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def _bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path == "/v1/events":  # lives for hours, with limits of its own
        return await handler(request)
    async with asyncio.timeout(HANDLER_S):
        return await handler(request)
