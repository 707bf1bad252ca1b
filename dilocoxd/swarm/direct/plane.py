"""The data plane: payloads to peers whose data port can be reached go over connections of their own.

Whether a port can be reached is tried in the background; until it is, and from the moment it fails, p2pd's streams
carry everything as before. A connection carries one exchange after the other (protocol S11), so a link that took round
trips to become fast stays fast. Source: protocol/04-streams.md, S11; ADR 25.
"""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.direct.certificates import PROTOCOLS, Credentials, proven_peer
from dilocoxd.swarm.direct.links import DataLink, open_link
from dilocoxd.swarm.direct.listener import DataListener
from dilocoxd.swarm.direct.looks import HostLooks
from dilocoxd.swarm.direct.nodes import is_from_node, is_to_node, life_left_s, site_of
from dilocoxd.swarm.direct.refusals import look
from dilocoxd.swarm.direct.routes import RETRY_FIRST_S, OtherNode, Route, RouteView, in_turn
from dilocoxd.swarm.direct.turns import DataStream
from dilocoxd.swarm.interface import Listener
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.swarm.streams.throttle import Writers
from dilocoxd.wire.frames import UNDIGESTED_SINCE_MINOR, FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, Hello

LOOK_EVERY_S: Final = 1.0
TRIES_MAX: Final = 8
HOSTS_TRIED: Final = 4
CONNECT_S: Final = 8.0
"""Two round trips of a bad link and its cryptography."""
CONNECT_NOW_S: Final = 3.0
"""The same for an exchange that p2pd could carry: the port has answered before."""
SLOT_WAIT_S: Final = 10.0
WELCOME_S: Final = 10.0
ROUTES_MAX: Final = 1024
ROOM_EVERY_S: Final = 60.0

Hosts = Callable[[PeerId], Awaitable[list[str]]]
"""IP addresses at which a peer's data port may be, best first. Raises PeerError."""
Keys = Callable[[PeerId], bytes]
"""DER of a peer's public key; empty as long as nobody has brought its record."""


async def _always(peer: PeerId) -> bool:
    return True


class DataPlane:
    """Everything about data connections; one for each daemon."""

    def __init__(
        self, credentials: Credentials, listener: DataListener, hosts: Hosts, keys: Keys, run_id: str, most: int
    ) -> None:
        """`most`: connections to one peer that are used at a time."""
        self._credentials = credentials
        self.listener = listener
        self._hosts, self._keys = hosts, keys
        self._run_id = run_id
        self._most = most
        self._routes: dict[PeerId, Route] = {}
        self._waiting: dict[PeerId, int] = {}
        """Data ports of those that said hello before their record, with their key, came, or while no place was free."""
        self._woken = asyncio.Event()
        self._ended: dict[PeerId, Route] = {}
        """To whom a connection has ended: whether anybody is there is looked at next, or just now."""
        self._looking: set[PeerId] = set()
        self.is_connected: Callable[[PeerId], Awaitable[bool]] = _always
        self.on_gone: Callable[[PeerId], None] = lambda peer: None
        self.parts_reaching: Callable[[PeerId], tuple[int, ...]] = lambda peer: ()
        """See RouteView."""
        self.nodes_of: Callable[[PeerId], tuple[OtherNode, ...]] = lambda peer: ()
        """Likewise."""
        self.on_hosts: Callable[[HostsHeard], None] = lambda heard: None
        self.on_moved: Callable[[frozenset[PeerId]], None] = lambda peers: None
        self._room_at = 0.0
        self.progress_timeout_s = 10.0
        self.slot_wait_s: float | None = SLOT_WAIT_S
        """So long an exchange waits for its turn before p2pd carries it; None: as long as those before it move."""
        self.speed_to: Callable[[PeerId], float] | None = None
        """Bytes per second at which payloads were sent there, 0: not known; None: nobody measures it."""
        self.minor_min = 0
        """Of the protocol of whom we open connections to."""
        self.counts: Counter[str] = Counter()
        """links_opened, links_reused (they rested), links_shared (with exchanges that are not over), tries_failed."""

    @property
    def port(self) -> int:
        """Where others reach ours."""
        return self.listener.port

    def tell(
        self,
        is_connected: Callable[[PeerId], Awaitable[bool]],
        listener: Listener,
        speed_to: Callable[[PeerId], float],
    ) -> None:
        """`is_connected`: whether p2pd has a connection to a peer. `listener`: told when nobody is there any more, by
        the word of the host (D11.4), while hosts do not answer, and when they do again (D11.5), and of whom bytes came
        (D11.1). `speed_to`: see there."""
        self.is_connected, self.speed_to = is_connected, speed_to
        self.on_gone, self.on_hosts, self.on_moved = listener.on_gone, listener.on_hosts, listener.on_moved

    # ---- whom we know -----------------------------------------------------------------------------------------

    def meet(self, peer: PeerId, port: int) -> None:
        """A peer of the run has said hello, and that its data port is `port` (0: it has none)."""
        self._waiting.pop(peer, None)
        public_key_der = self._keys(peer)
        # One that has just started may be asked before it knows its own addresses, and so has no record.
        is_done = bool(public_key_der) and self.listener.believe(peer, public_key_der)
        if public_key_der:
            is_done = self._route_to(peer, public_key_der, port) and is_done
        if not is_done and len(self._waiting) < ROUTES_MAX:
            self._waiting[peer] = port

    def _route_to(self, peer: PeerId, public_key_der: bytes, port: int) -> bool:
        """Have a route to this port, if there is one; False: all places are taken."""
        known = self._routes.get(peer)
        if known is not None and known.port == port:
            return True
        self._forget(peer)
        if not port or len(self._routes) >= ROUTES_MAX:
            return not port
        route = self._routes[peer] = Route(peer, port, public_key_der, asyncio.Semaphore(self._most))
        if known is not None:  # whoever names another port with each hello has us try no oftener
            route.next_try, route.pause_s = known.next_try, known.pause_s
        self._woken.set()
        return True

    def drop(self, peer: PeerId) -> None:
        """`peer` is none of ours any more: nothing to it, nothing from it."""
        for link in tuple(self._routes[peer].used) if peer in self._routes else ():
            link.abort()
        self._forget(peer)
        self.listener.drop(peer)

    def _meet_waiting(self, in_touch: Set[PeerId]) -> None:
        self._waiting = {peer: port for peer, port in self._waiting.items() if peer in in_touch}
        for peer, port in list(self._waiting.items()):
            self.meet(peer, port)

    def _forget(self, peer: PeerId) -> None:
        self._waiting.pop(peer, None)
        route = self._routes.pop(peer, None)
        if route is not None:
            route.is_open = False
            route.end()

    def view(self, peer: PeerId) -> RouteView:
        """How payloads travel to `peer`."""
        route, nodes = self._routes.get(peer), self.nodes_of(peer)
        if route is None:
            return RouteView(False, "it offers no data port", nodes=nodes)
        reason = "" if route.is_open else route.last_error or "not tried yet"
        return RouteView(route.is_open, reason, sum(map(len, route.idle.values())), self.parts_reaching(peer), nodes)

    def routes(self) -> Mapping[PeerId, Route]:
        """Of all peers that offer a data port; to be read only."""
        return self._routes

    def renew(self, credentials: Credentials) -> None:
        """Show this certificate from now on; connections that are open end when their exchanges have."""
        self._credentials = credentials
        for route in self._routes.values():
            route.renew()

    # ---- trying -----------------------------------------------------------------------------------------------

    async def run(self, in_touch: Callable[[], Set[PeerId]]) -> None:
        """Serve, and try the ports of peers in touch, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.listener.run(), name="data port")
                looks = HostLooks(self.on_hosts, self.on_moved)
                group.create_task(looks.run(self._links), name="looks at hosts")
                while True:
                    self._woken.clear()
                    self._make_room(in_touch())
                    self._meet_waiting(in_touch())
                    self._trim(in_touch())
                    self._look_at_ended(group)
                    self._try_due(group, in_touch())
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await self._woken.wait()
        finally:
            for peer in list(self._routes):
                self._forget(peer)

    def _links(self) -> dict[PeerId, list[DataLink]]:
        return {
            peer: [*route.resting(), *route.used, *(one for one in self.listener.links(peer) if not one.is_of_node)]
            for peer, route in self._routes.items()
        }

    def _look_at_ended(self, group: asyncio.TaskGroup) -> None:
        ended, self._ended = self._ended, {}
        for peer, route in ended.items():
            if self._routes.get(peer) is route and peer not in self._looking:
                self._looking.add(peer)
                task = group.create_task(look(route, self.is_connected, self.on_gone), name=f"whether {peer} is gone")
                task.add_done_callback(lambda done, peer=peer: self._looking.discard(peer))  # type: ignore[misc]

    def _note_end(self, route: Route) -> None:
        if route.host:
            self._ended[route.peer] = route
            self._woken.set()

    def _make_room(self, in_touch: Set[PeerId]) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._room_at:
            return
        self._room_at = now + ROOM_EVERY_S
        self.listener.make_room(in_touch)
        if len(self._routes) >= ROUTES_MAX:
            for peer in self._routes.keys() - in_touch:
                self._forget(peer)

    def _trim(self, in_touch: Set[PeerId]) -> None:
        now = asyncio.get_running_loop().time()
        for peer, route in self._routes.items():
            is_alone = peer not in in_touch
            for link in route.used:
                link.is_outdated = link.is_outdated or now >= link.ends_at
            route.trim(lambda link, is_alone=is_alone: is_alone or link.is_over or now >= link.rests_until)  # type: ignore[misc]

    def _try_due(self, group: asyncio.TaskGroup, in_touch: Set[PeerId]) -> None:
        now = asyncio.get_running_loop().time()
        trying = sum(route.is_trying for route in self._routes.values())
        known = (route for peer, route in self._routes.items() if peer in in_touch)
        for route in in_turn(known, now)[: max(0, TRIES_MAX - trying)]:
            route.is_trying, route.tried_at = True, now
            group.create_task(self._try(route), name=f"data port of {route.peer}")

    async def _try(self, route: Route) -> None:
        try:
            await self._try_hosts(route)
        except PeerError as error:
            self.counts["tries_failed"] += 1
            route.failed(str(error), asyncio.get_running_loop().time())
        finally:
            route.is_trying = False

    async def _try_hosts(self, route: Route) -> None:
        reasons = []
        for host in (await self._hosts(route.peer))[:HOSTS_TRIED]:
            try:
                link = await self._open(route, PROTOCOL_BULK, host)
            except PeerError as error:
                reasons.append(str(error))
                continue
            if self._routes.get(route.peer) is not route:
                link.abort()  # it moved or left meanwhile
                return
            route.succeeded(host)
            route.keep(link, PROTOCOL_BULK, asyncio.get_running_loop().time(), self._most)
            return
        raise PeerError("; ".join(reasons) or "no address of it is known")

    async def _open(self, route: Route, protocol: str, host: str, *, connect_s: float = CONNECT_S) -> DataLink:
        """A connection on which the peer has welcomed us. Raises PeerError."""
        shown, is_welcome = self._credentials, False
        link = await open_link(host, route.port, self._context(route, protocol), timeout_s=connect_s)
        try:
            proven_peer(link.certificate(), {site_of(route.peer): route.public_key})
            if is_from_node(link.certificate()) is not is_to_node(route.peer):
                what = (
                    "no node answers at a port of one" if is_to_node(route.peer) else "a node answers at its data port"
                )
                raise PeerError(f"{site_of(route.peer)}: {what}, and nothing is taken there in its name")
            life_s = life_left_s(link.certificate())
            if link.protocol() != protocol:
                raise PeerError(f"{route.peer} knows no data connections for {protocol}")
            stream = FrameStream(route.peer, link.channel, link.channel, progress_timeout_s=self.progress_timeout_s)
            frame = await stream.read(FrameKind.HELLO, timeout_s=WELCOME_S)
            hello = PEER_MESSAGES.decode(frame.message)
            if not isinstance(hello, Hello) or (hello.protocol_major, hello.run_id) != (PROTOCOL_MAJOR, self._run_id):
                raise PeerError(f"{route.peer} is in another run, or speaks another protocol")
            if hello.protocol_minor < self.minor_min:
                raise PeerError(f"it speaks protocol {PROTOCOL_MAJOR}.{hello.protocol_minor}, and no later one")
            link.channel.on_ended = lambda: self._note_end(route)
            link.is_outdated = shown is not self._credentials
            if life_s is not None:
                link.ends_at = asyncio.get_running_loop().time() + life_s
            link.omits_digests = hello.protocol_minor >= UNDIGESTED_SINCE_MINOR
            route.minor = hello.protocol_minor
            is_welcome = True
        except WireError as error:
            raise PeerError(f"{route.peer}: {error.detail}") from error
        finally:
            if not is_welcome:
                link.abort()
        self.counts["links_opened"] += 1
        return link

    def _context(self, route: Route, protocol: str) -> ssl.SSLContext:
        if protocol not in route.contexts:
            anchor = self._credentials.anchor(site_of(route.peer), route.public_key)
            try:
                route.contexts[protocol] = self._credentials.client_context((anchor,), protocol)
            except OSError as error:  # no descriptors left
                raise PeerError(f"{route.peer}: {error.strerror or error}") from error
        return route.contexts[protocol]

    # ---- using ------------------------------------------------------------------------------------------------

    async def take(self, peer: PeerId, protocol: str) -> FrameStream | None:
        """A connection for one exchange, to be closed like a stream; None: use p2pd."""
        route = self._routes.get(peer)
        if route is None or not route.is_open or protocol not in PROTOCOLS:
            return None
        writers = self._writers(route) if protocol == PROTOCOL_BULK else None
        is_thin = writers is not None and writers.num < self._most  # p2pd would go by the same line
        try:
            async with asyncio.timeout(None if is_thin else self.slot_wait_s):
                await route.acquire(writers)
        except TimeoutError:
            return None
        link: DataLink | None = None
        try:
            link = await self._take(route, protocol, self._most if writers is None else writers.num)
        finally:
            if link is None:
                route.release(writers)
        if link is not None and self._routes.get(peer) is not route:  # evicted, or moved, meanwhile
            route.release(writers)
            link.abort()
            return None
        return self._as_stream(route, protocol, link, writers) if link is not None else None

    def _writers(self, route: Route) -> Writers | None:
        if self.speed_to is None:
            return None
        if route.writers is None:
            route.writers = Writers(self._most)
        route.writers.fit(self.speed_to(route.peer))
        return route.writers

    async def _take(self, route: Route, protocol: str, most: int) -> DataLink | None:
        is_full = most < self._most and route.num_used(protocol) + route.num_opening >= most
        if is_full and (link := route.shared(protocol)) is not None:  # what rests would take its part of the line
            self.counts["links_shared"] += 1
            return link
        link = route.pop_idle(protocol)
        if link is not None:
            self.counts["links_reused"] += 1
            return link
        if not route.is_open:
            return None
        if len(route.used) + route.num_opening >= self._most and (link := route.shared(protocol)) is not None:
            self.counts["links_shared"] += 1
            return link
        route.num_opening += 1
        try:
            connect_s = CONNECT_S if most < self._most else CONNECT_NOW_S  # by a thin line p2pd is no faster
            return await self._open(route, protocol, route.host, connect_s=connect_s)
        except PeerError as error:
            if route.is_open:  # else another exchange has found that out meanwhile
                route.failed(str(error), asyncio.get_running_loop().time())
            self.counts["tries_failed"] += 1
            return None
        finally:
            route.num_opening -= 1

    def _as_stream(self, route: Route, protocol: str, link: DataLink, writers: Writers | None) -> FrameStream:
        def over(is_clean: bool) -> None:
            if writers is not None and (is_clean or (stream.is_broken and not stream.is_stale)):
                (writers.grow if is_clean else writers.shrink)()
            now = asyncio.get_running_loop().time()
            if not link.num_under_way:
                route.used.discard(link)
            if is_clean:
                route.pause_s = RETRY_FIRST_S
            elif stream.is_broken and route.is_open and not stream.is_stale:
                route.failed("an exchange broke on the way", now)
                self._woken.set()
            if not is_clean or (not link.num_under_way and (link.is_over or link.is_outdated or not route.is_open)):
                link.abort()
            elif not link.num_under_way:
                route.keep(link, protocol, now, self._most)

        route.used.add(link)
        stream = DataStream(
            route.peer,
            link,
            self.progress_timeout_s,
            on_written=lambda: route.release(writers),
            on_over=over,
        )
        return stream
