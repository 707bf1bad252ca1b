"""What the API needs of the daemon: a view that only reads, and the few commands that change something.

The answers are those of dilocoxd/answers. Source: docs/internals.md section 6. Implemented by daemon/observe/view.py
and daemon/control.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dilocoxd.answers.alerts import ExplainedAlert, PastAlert
from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.history import LossCurves, OwnSpan, SwarmTimeline
from dilocoxd.answers.members import Member
from dilocoxd.answers.peers import Peer, Ping, Reach
from dilocoxd.answers.rounds import LogEntry, RoundRow
from dilocoxd.answers.site import ProfileStatus, ResolvedConfig, Sample, Snapshot
from dilocoxd.answers.status import Status
from dilocoxd.telemetry.catalogue import Level


class View(Protocol):
    """What the daemon shows. Plain methods are cheap and free of side effects; coroutines read files in a thread."""

    @property
    def is_healthy(self) -> bool:
        """Loop and supervisor live."""

    @property
    def is_ready(self) -> bool:
        """The site trains with the swarm."""

    def status(self) -> Status:
        """GET /v1/status."""

    def peers(self) -> Sequence[Peer]:
        """GET /v1/peers."""

    def members(self) -> Sequence[Member]:
        """GET /v1/members."""

    def authorities(self) -> Sequence[AuthorityList]:
        """GET /v1/authorities."""

    def rounds(self, first: int, limit: int) -> Sequence[RoundRow]:
        """Rounds ascending from `first`."""

    def rounds_before(self, before: int | None, limit: int) -> Sequence[RoundRow]:
        """Rounds descending, below `before` (None: from the newest)."""

    def round(self, index: int) -> RoundRow | None:
        """One round, or None if this daemon does not know it."""

    def losses(self) -> LossCurves:
        """GET /v1/losses."""

    def timeline(self) -> Sequence[OwnSpan]:
        """GET /v1/timeline."""

    def swarm_timeline(self, since: float) -> SwarmTimeline:
        """GET /v1/timeline/sites: spans that end after `since`."""

    def alerts(self) -> Sequence[ExplainedAlert]:
        """GET /v1/alerts."""

    def past_alerts(self) -> Sequence[PastAlert]:
        """GET /v1/alerts/history."""

    def recent_events(self, limit: int) -> Sequence[Mapping[str, object]]:
        """The newest events, oldest first."""

    def profile(self) -> ProfileStatus:
        """GET /v1/profile."""

    def sample(self) -> Sample:
        """GET /v1/sample."""

    def config(self) -> ResolvedConfig:
        """GET /v1/config, secrets masked."""

    async def log(self, before: int | None, limit: int) -> Sequence[LogEntry]:
        """Entries of the log descending, below `before` (None: from the newest)."""

    async def log_entry(self, index: int) -> LogEntry | None:
        """One entry, or None if it is not in the log."""

    async def snapshots(self) -> Sequence[Snapshot]:
        """GET /v1/snapshots."""

    def metrics(self) -> str:
        """GET /metrics, Prometheus text."""

    def listen(self, listener: Callable[[dict[str, object]], None]) -> None:
        """Call `listener` with every event from now on; it must not block or raise."""


class Control(Protocol):
    """The commands. Each returns one sentence for the operator. Raises CommandRefused."""

    def pause(self, reason: str) -> str:
        """The trainers stop at the next inner step; the shared state goes on following the others."""

    def resume(self) -> str:
        """The trainers go on."""

    def leave(self) -> str:
        """Settle the round, say goodbye, end."""

    def snapshot(self) -> str:
        """Write the shared state to disk as soon as the outer worker is free."""

    async def profile(self, steps: int) -> str:
        """Record the next inner steps of all ranks; `View.profile` tells what comes of it."""

    async def sample(self, prompt: str) -> str:
        """Have the newest snapshot's model go on from `prompt`; `View.sample` tells what comes of it."""

    async def reach(self) -> Reach:
        """What a peer finds when it tries to connect to us."""

    async def ping(self, site: str) -> Ping:
        """How the other site of that name is reached, and how well."""

    async def connect(self, address: str) -> str:
        """Ask at this address from now on."""

    async def disconnect(self, site: str) -> str:
        """Close the connection to the other site of that name."""

    def evict(self, revocation: str) -> str:
        """Settle a signed revocation, and tell the others."""

    def vote_eviction(self, site: str) -> str:
        """Sign our vote to evict the member with this peer id, and tell the others."""

    def adopt(self, target: str) -> str:
        """Take the branch with this chain head, or of this site, and stay on it."""

    def change_authorities(self, change: str) -> str:
        """Settle a signed change of the authorities, and tell the others."""

    def vote_authorities(self, terms: str) -> str:
        """Sign our vote for other authorities, and tell the others."""

    def set_log_level(self, level: Level) -> str:
        """Least severity of events on stderr or in the journal."""
