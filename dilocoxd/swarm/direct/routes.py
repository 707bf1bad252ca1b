"""Ways to one peer: whether its data port can be reached, since when, and the connections to it that are open."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.nodes import site_of
from dilocoxd.swarm.streams.throttle import Writers

RETRY_FIRST_S: Final = 2.0
RETRY_MAX_S: Final = 120.0


@dataclass(slots=True)
class Route:
    """The way to one peer."""

    peer: PeerId
    port: int
    public_key: bytes
    slots: asyncio.Semaphore
    """Exchanges that are written at a time."""
    writers: Writers | None = None
    """Of these, payloads that we send; None: as many as there are slots."""
    is_open: bool = False
    """Its data port answered, and nothing has failed since."""
    is_trying: bool = False
    host: str = ""
    """IP address that answered."""
    last_error: str = ""
    next_try: float = 0.0
    tried_at: float = 0.0
    """Begin of the last try."""
    pause_s: float = RETRY_FIRST_S
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)
    """By stream protocol, as they are needed; each believes nobody but this peer."""
    idle: dict[str, deque[DataLink]] = field(default_factory=dict)

    used: set[DataLink] = field(default_factory=set)
    """Connections with an exchange on them."""
    num_opening: int = 0
    """Connections on which the peer has not welcomed us yet."""
    minor: int = 0
    """Minor version of the protocol that it named when it last welcomed us."""

    def succeeded(self, host: str) -> None:
        """Its data port answers at `host`."""
        self.is_open, self.host, self.last_error = True, host, ""

    def failed(self, reason: str, now: float) -> None:
        """It does not; p2pd's streams are used until a later try succeeds."""
        self.is_open, self.last_error = False, reason
        self.next_try = now + self.pause_s
        self.pause_s = min(RETRY_MAX_S, 2 * self.pause_s)

    def pop_idle(self, protocol: str) -> DataLink | None:
        """The connection used last, which is still fast; None: there is none."""
        links = self.idle.get(protocol, deque())
        while links:
            link = links.pop()
            if not link.is_over:
                return link
            link.abort()
        return None

    def resting(self) -> list[DataLink]:
        """Idle connections, for each protocol the one used last."""
        return [links[-1] for links in self.idle.values() if links]

    async def acquire(self, writers: Writers | None) -> None:
        """Return when one more exchange may be written, a payload if there are `writers`; pair with `release`."""
        if writers is None:
            await self.slots.acquire()
            return
        await writers.acquire()
        is_ours = False
        try:
            is_ours = await self.slots.acquire()
        finally:
            if not is_ours:
                writers.release()

    def release(self, writers: Writers | None) -> None:
        """It is written."""
        self.slots.release()
        if writers is not None:
            writers.release()

    def num_used(self, protocol: str) -> int:
        """Connections for it with an exchange on them."""
        return sum(link.protocol() == protocol for link in self.used)

    def shared(self, protocol: str) -> DataLink | None:
        """Where nobody writes, and the fewest answers are due; None: there is no such connection."""
        free = (
            link
            for link in self.used
            if not (link.is_written or link.is_spoilt or link.is_outdated or link.is_ended)
            and link.protocol() == protocol
        )
        return min(free, key=lambda link: link.num_under_way, default=None)

    def keep(self, link: DataLink, protocol: str, now: float, most: int) -> None:
        """It may carry another exchange. At most `most` wait; the one that waited longest ends first."""
        link.idle_since = now
        links = self.idle.setdefault(protocol, deque())
        links.append(link)
        while len(links) > most:
            links.popleft().abort()

    def trim(self, is_over: Callable[[DataLink], bool]) -> None:
        """End the idle connections that are over."""
        for protocol, links in self.idle.items():
            over = [link for link in links if is_over(link)]
            for link in over:
                link.abort()
            self.idle[protocol] = deque(link for link in links if link not in over)

    def renew(self) -> None:
        """Another certificate is shown from now on: what is open ends as soon as no exchange is on it."""
        self.contexts.clear()
        self.end()
        for link in self.used:
            link.is_outdated = True

    def end(self) -> None:
        """End all idle connections."""
        self.trim(lambda link: True)


def in_turn(routes: Iterable[Route], now: float) -> list[Route]:
    """Those that are due, best first: of each site one before a second one of any other, then of the site that was
    tried longest ago. Dozens of one site that never answer would else keep that of another from being tried."""
    by_site: dict[PeerId, list[Route]] = {}
    for route in routes:
        by_site.setdefault(site_of(route.peer), []).append(route)
    found: list[tuple[tuple[int, float, float], Route]] = []
    for ways in by_site.values():
        num_trying, tried_at = sum(way.is_trying for way in ways), max(way.tried_at for way in ways)
        due = [way for way in ways if not way.is_open and not way.is_trying and way.next_try <= now]
        for number, way in enumerate(sorted(due, key=lambda way: way.next_try), num_trying):
            found.append(((number, tried_at, way.next_try), way))
    return [way for _, way in sorted(found, key=lambda item: item[0])]


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node of another site, as the site tells of it (protocol S12), and whether we reach it."""

    addresses: tuple[str, ...]
    """IP addresses, with the port."""
    first: int
    stop: int
    """It takes contributions to segments [first, stop)."""
    is_reached: bool
    reason: str
    """Why not, in words; empty if it is."""


@dataclass(frozen=True, slots=True)
class RouteView:
    """How payloads travel to a peer."""

    is_data: bool
    """By data connections; else by p2pd's streams."""
    reason: str
    """Why not, in words; empty with data connections."""
    num_idle: int = 0
    parts: tuple[int, ...] = ()
    """Outer parts on nodes of this site whose nodes reach it by data connections of their own."""
    nodes: tuple[OtherNode, ...] = ()
    """Nodes of that site that take contributions themselves."""
