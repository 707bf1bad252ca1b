"""Decides who is answered: host names against DNS rebinding, the bearer token, requests per second, open connections.

Other web pages cannot use the API through a visitor's browser: no CORS header is ever sent (they cannot read), requests
for control need a bearer token, which browsers never send by themselves (they cannot act), and a request under a host
name that somebody else's DNS can point at us is refused (no rebinding).
"""

import hmac
import ipaddress
import time
from typing import Final

from aiohttp import web

from dilocoxd.api.responses.problems import Handler, ProblemError
from dilocoxd.api.settings import ApiSettings
from dilocoxd.swarm.streams.budget import Budget, Rate

CLIENTS_TRACKED: Final = 256


def host_of(authority: str) -> str:
    """The host in a Host header, lower case, without port and brackets."""
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
        return host.lower() if not port or port.startswith(":") else authority.lower()
    return authority.rpartition(":")[0].lower() if authority.count(":") == 1 else authority.lower()


def is_own_name(host: str, names: frozenset[str]) -> bool:
    """Whether nobody else's DNS can make `host` point at us: an address, a name without a dot, or a configured name.

    >>> is_own_name("127.0.0.1", frozenset()), is_own_name("evil.example", frozenset())
    (True, False)
    """
    host = host.rstrip(".")
    if host in names or ("." not in host and ":" not in host) or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class RequestGuard:
    """Asked before every request."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._names = settings.names
        rate = settings.section.requests_per_s_max
        self._budget = Budget(time.monotonic, each=Rate(rate, 2 * rate), keys_max=CLIENTS_TRACKED)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses, or goes on."""
        self._check_host(request)
        self._check_rate(request)
        is_control = request.method not in ("GET", "HEAD")
        if is_control:
            self._check_origin(request)
        is_page = not request.path.startswith("/v1/") and request.path != "/metrics"
        if is_control or (self._settings.section.read_needs_token and not is_page):
            self._check_token(request)
        return await handler(request)

    def _check_host(self, request: web.Request) -> None:
        host = host_of(request.headers.get("Host", ""))
        if not is_own_name(host, self._names):
            raise ProblemError(
                421,
                "Misdirected Request",
                f"{host[:100]!r} is not a name of this daemon; use its IP address, or add the name to api.names in"
                " site.toml",
            )

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("Host", ""):
            raise ProblemError(403, "Forbidden", "control requests from other web pages are refused")

    def _check_rate(self, request: web.Request) -> None:
        if not self._budget.take(request.remote or ""):
            limit = self._settings.section.requests_per_s_max
            detail = f"more than {limit} requests a second; ask less often, or raise api.requests_per_s_max"
            raise ProblemError(429, "Too Many Requests", detail, {"Retry-After": "1"})

    def _check_token(self, request: web.Request) -> None:
        if not self._settings.token:
            raise ProblemError(403, "Forbidden", "this daemon has no token, so control over HTTP is off")
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("utf-8", "surrogateescape"), self._settings.token.encode("utf-8")
        ):
            return
        raise ProblemError(
            401,
            "Unauthorized",
            "send the header 'Authorization: Bearer TOKEN'; the token is in the file api.token of the run directory",
            {"WWW-Authenticate": 'Bearer realm="dilocoxd"'},
        )
