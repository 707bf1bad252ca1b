"""The table of the API: every path with its parameters, its answer and what it is for.

The routes of the server and the OpenAPI document are both made from it, so neither can have what the other lacks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import JsonValue

from dilocoxd.answers.alerts import ExplainedAlert, PastAlert
from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.history import LossCurves, OwnSpan, SwarmTimeline
from dilocoxd.answers.members import Member
from dilocoxd.answers.peers import JoinLine, Peer, Ping, Reach
from dilocoxd.answers.rounds import LogEntry, Participation, RoundColumns, RoundRow
from dilocoxd.answers.site import CommandDone, Health, ProfileStatus, ResolvedConfig, Sample, Snapshot
from dilocoxd.answers.status import Status
from dilocoxd.api.requests import (
    AddressRequest,
    AdoptRequest,
    ChangeAuthoritiesRequest,
    EmptyRequest,
    EvictRequest,
    LogLevelRequest,
    PauseRequest,
    PeerRequest,
    ProfileRequest,
    SampleRequest,
    SiteRequest,
    VoteAuthoritiesRequest,
)
from dilocoxd.api.responses.problems import bad_request

INTEGER_MAX: Final = 2**53 - 1
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
LOG_PAGE_DEFAULT: Final = 20
LOG_PAGE_MAX: Final = 200
POINTS_MAX: Final = 50_000
COLUMNS_MAX: Final = 50_000

OpenApiDocument = Mapping[str, JsonValue]
EventRecord = Mapping[str, JsonValue]


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
FIRST: Final = Parameter("from", "Only rounds from this one on.", default=0)
EVENTS_LIMIT: Final = Parameter("limit", "Events, at most.", low=1, high=500, default=100)
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
    """Class of the JSON answer, or a content type."""
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
        "GET", "/healthz", "healthz", "200 while the loop and the supervisor live.", Health,
        problems=(503,), is_cached=False,
    ),
    Endpoint(
        "GET", "/readyz", "readyz", "200 while the site trains with the others.", Health,
        problems=(503,), is_cached=False,
    ),
    Endpoint("GET", "/metrics", "metrics", "Prometheus exposition; docs/metrics.md.", "text/plain", is_cached=False),
    Endpoint("GET", "/v1/openapi.json", "openapi", "This document.", OpenApiDocument),
    Endpoint("GET", "/v1/status", "status", "What the daemon does, what it waits for and why.", Status),
    Endpoint("GET", "/v1/peers", "peers", "All other sites that this one knows.", list[Peer]),
    Endpoint("GET", "/v1/members", "members", "Who belongs to the run, and who was evicted.", list[Member]),
    Endpoint(
        "GET", "/v1/authorities", "authorities", "Who decides who may join, who did, and whom members vote for.",
        list[AuthorityList],
    ),
    Endpoint(
        "GET", "/v1/rounds", "rounds", "Rounds, newest first; with `from`, ascending.", list[RoundRow],
        (FROM, BEFORE, LIMIT), headers=LINK,
    ),
    Endpoint("GET", "/v1/rounds/{round}", "round_", "One round.", RoundRow, (ROUND,), problems=(404,)),
    Endpoint(
        "GET", "/v1/columns/rounds", "round_columns", "All committed rounds that are known, as columns for charts.",
        RoundColumns, (FIRST,),
    ),
    Endpoint(
        "GET", "/v1/participation", "participation", "Who took part in the newest committed rounds.", Participation,
        (LIMIT,),
    ),
    Endpoint("GET", "/v1/join", "join", "The command that others join with, also as a QR code.", JoinLine),
    Endpoint(
        "GET", "/v1/losses", "losses", "Loss curves: every inner step here, the shared model, other sites.", LossCurves,
        (POINTS,),
    ),
    Endpoint("GET", "/v1/timeline", "timeline", "What this site did when.", list[OwnSpan], (SINCE,)),
    Endpoint(
        "GET", "/v1/timeline/sites", "sites_timeline", "What this and all other sites did when, as seen from here.",
        SwarmTimeline, (SINCE,),
    ),
    Endpoint("GET", "/v1/alerts", "alerts", "Alerts that stand, with cause and remedy.", list[ExplainedAlert]),
    Endpoint(
        "GET", "/v1/alerts/history", "past_alerts", "Alerts that stood once, newest last.", list[PastAlert],
    ),
    Endpoint(
        "GET", "/v1/events/recent", "recent_events", "The newest events, oldest first; docs/events.md.",
        list[EventRecord], (EVENTS_LIMIT,),
    ),
    Endpoint(
        "GET", "/v1/log", "log", "Entries of the log, newest first.", list[LogEntry], (BEFORE, LOG_LIMIT),
        headers=LINK,
    ),
    Endpoint("GET", "/v1/log/{round}", "log_entry", "One entry.", LogEntry, (ROUND,), problems=(404,)),
    Endpoint("GET", "/v1/snapshots", "snapshots", "Snapshots on this site's disk.", list[Snapshot]),
    Endpoint(
        "GET", "/v1/profile", "profile", "What came of the newest profile of inner steps, or how far it is.",
        ProfileStatus,
    ),
    Endpoint(
        "GET", "/v1/sample", "sample", "The newest text that the shared model wrote for an operator.", Sample,
    ),
    Endpoint("GET", "/v1/config", "config", "The configuration as it took effect, secrets masked.", ResolvedConfig),
    Endpoint(
        "GET", "/v1/events", "events", "Server-sent events: `event` (docs/events.md), `status`, `reset`.",
        "text/event-stream", problems=(503,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/pause", "pause", "The trainers stop at the next inner step.", CommandDone,
        body=PauseRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/resume", "resume", "The trainers go on.", CommandDone, body=EmptyRequest,
        problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/leave", "leave", "Settle the round, say goodbye and end.", CommandDone,
        body=EmptyRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/snapshot", "snapshot", "Write the shared state to disk.", CommandDone,
        body=EmptyRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/profile", "start_profile",
        "Record the next inner steps of every trainer process as traces; see GET /v1/profile.", CommandDone,
        body=ProfileRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/sample", "start_sample",
        "Have the model of the newest snapshot continue a text, once a minute at most; see GET /v1/sample.",
        CommandDone, body=SampleRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/reach", "reach", "Have a peer try to connect to the addresses that we announce.",
        Reach, body=EmptyRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/ping", "ping", "How another site is reached: latency, direct or relayed, bandwidth.",
        Ping, body=SiteRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/connect", "connect", "Ask for peers at an address from now on.", CommandDone,
        body=AddressRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/disconnect", "disconnect", "Close the connection to another site.", CommandDone,
        body=SiteRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/evict", "evict", "Settle a revocation that authorities signed, and tell the others.",
        CommandDone, body=EvictRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/vote-eviction", "vote_eviction",
        "Vote as a member for the eviction of another one, and tell the others.", CommandDone,
        body=PeerRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/adopt", "adopt", "Take the branch with this chain head, or of this site, and stay on it.",
        CommandDone, body=AdoptRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/change-authorities", "change_authorities",
        "Settle a change of the authorities that those before have signed, and tell the others.", CommandDone,
        body=ChangeAuthoritiesRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/vote-authorities", "vote_authorities",
        "Vote as a member for other authorities, and tell the others.", CommandDone,
        body=VoteAuthoritiesRequest, problems=(409,), is_cached=False,
    ),
    Endpoint(
        "POST", "/v1/control/log-level", "log_level", "Least severity of events on stderr or in the journal.",
        CommandDone, body=LogLevelRequest, is_cached=False,
    ),
)  # fmt: skip
