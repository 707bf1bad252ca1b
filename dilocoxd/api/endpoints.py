"""The table of the API: every path with its parameters, its answer and what it is for.

The routes of the server and the OpenAPI document are both made from it, so neither can have what the other lacks.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import web

from dilocoxd.api import models
from dilocoxd.api.problems import bad_request

INTEGER_MAX: Final = 2**53 - 1
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
LOG_PAGE_DEFAULT: Final = 20
LOG_PAGE_MAX: Final = 200
POINTS_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole number in the query or the path."""

    name: str
    text: str
    low: int = 0
    high: int = INTEGER_MAX
    place: Literal["query", "path"] = "query"
    default: int | None = None

    def read(self, request: web.Request) -> int | None:
        """The value. Raises ProblemError(400) with a sentence for the caller."""
        source = request.match_info if self.place == "path" else request.query
        given = source.get(self.name)
        if given is None:
            return self.default
        if not (given.isascii() and given.isdecimal() and len(given) <= 16 and self.low <= int(given) <= self.high):
            raise bad_request(
                f"{self.place} parameter {self.name} is {given[:40]!r}; give a whole number from {self.low} to"
                f" {self.high}"
            )
        return int(given)

    def integer(self, request: web.Request) -> int:
        """The value of one that always has one."""
        value = self.read(request)
        assert value is not None, "needs a default"
        return value


FROM: Final = Parameter("from", "Ascending from this round instead of descending from the newest.")
BEFORE: Final = Parameter("before", "Only rounds below this one; the last round of the page before.")
LIMIT: Final = Parameter("limit", "Rows, at most.", low=1, high=PAGE_MAX, default=PAGE_DEFAULT)
LOG_LIMIT: Final = Parameter("limit", "Rows, at most.", low=1, high=LOG_PAGE_MAX, default=LOG_PAGE_DEFAULT)
POINTS: Final = Parameter("points", "Thin each curve to at most so many points (means).", low=2, high=POINTS_MAX)
SINCE: Final = Parameter("since", "Only what ended after this time (unix seconds).", default=0)
ROUND: Final = Parameter("round", "Number of the round.", place="path")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: Literal["GET", "POST"]
    path: str
    name: str
    """operationId; the handler has the same name."""
    text: str
    answer: Any
    """Model of the JSON answer, or a content type."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """Model of the JSON request."""
    problems: tuple[int, ...] = ()
    """Statuses besides those that every path has."""
    is_cached: bool = True
    """Has an entity tag, answers 304."""
    headers: tuple[tuple[str, str], ...] = ()


LINK: Final = (("Link", 'Next page, as rel="next".'),)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET", "/healthz", "healthz", "200 while the loop and the supervisor live.", models.Health,
        problems=(503,), is_cached=False,
    ),
    Endpoint(
        "GET", "/readyz", "readyz", "200 while the site trains with the others.", models.Health,
        problems=(503,), is_cached=False,
    ),
    Endpoint("GET", "/metrics", "metrics", "Prometheus exposition; docs/metrics.md.", "text/plain", is_cached=False),
    Endpoint("GET", "/v1/openapi.json", "openapi", "This document.", dict[str, Any]),
    Endpoint("GET", "/v1/status", "status", "What the daemon does, what it waits for and why.", models.Status),
    Endpoint("GET", "/v1/peers", "peers", "All other sites that this one knows.", list[models.Peer]),
    Endpoint(
        "GET", "/v1/rounds", "rounds", "Rounds, newest first; with `from`, ascending.", list[models.RoundRow],
        (FROM, BEFORE, LIMIT), headers=LINK,
    ),
    Endpoint("GET", "/v1/rounds/{round}", "round_", "One round.", models.RoundRow, (ROUND,), problems=(404,)),
    Endpoint(
        "GET", "/v1/losses", "losses", "Loss curves: every inner step, and the shared model.", models.LossCurves,
        (POINTS,),
    ),
    Endpoint("GET", "/v1/timeline", "timeline", "What this site did when.", list[models.Span], (SINCE,)),
    Endpoint(
        "GET", "/v1/timeline/sites", "sites_timeline", "What this and all other sites did when, as seen from here.",
        models.SwarmTimeline, (SINCE,),
    ),
    Endpoint("GET", "/v1/alerts", "alerts", "Alerts that stand, with cause and remedy.", list[models.Alert]),
    Endpoint(
        "GET", "/v1/log", "log", "Entries of the log, newest first.", list[models.LogEntry], (BEFORE, LOG_LIMIT),
        headers=LINK,
    ),
    Endpoint("GET", "/v1/log/{round}", "log_entry", "One entry.", models.LogEntry, (ROUND,), problems=(404,)),
    Endpoint("GET", "/v1/snapshots", "snapshots", "Snapshots on this site's disk.", list[models.Snapshot]),
    Endpoint("GET", "/v1/config", "config", "The configuration as it took effect, secrets masked.", models.Config),
    Endpoint(
        "GET", "/v1/events", "events", "Server-sent events: `event` (docs/events.md), `status`, `reset`.",
        "text/event-stream", problems=(503,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/pause", "pause", "The trainers stop at the next inner step.", models.Done,
        body=models.PauseRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/resume", "resume", "The trainers go on.", models.Done, body=models.Empty,
        problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/leave", "leave", "Settle the round, say goodbye and end.", models.Done,
        body=models.Empty, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/snapshot", "snapshot", "Write the shared state to disk.", models.Done,
        body=models.Empty, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/reach", "reach", "Have a peer try to connect to the addresses that we announce.",
        models.Reach, body=models.Empty, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/log-level", "log_level", "Least severity of events on stderr or in the journal.",
        models.Done, body=models.LogLevelRequest, problems=(409,), is_cached=False,
    ),
)  # fmt: skip
