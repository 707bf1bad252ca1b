"""Where data connections of others come in: accept, handshake, and then the same door as p2pd's streams have.

Who is not among the peers that we have met does not get through the handshake; what goes wrong there is counted, and
told once the handshake itself is done. Source: protocol/04-streams.md, S11.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.ipc.accepting import accepted
from dilocoxd.swarm.direct.certificates import PROTOCOLS, Credentials, proven_peer
from dilocoxd.swarm.direct.links import DataLink, accept_link
from dilocoxd.swarm.direct.nodes import life_left_s
from dilocoxd.swarm.direct.vestibule import Vestibule, Visitor
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream

KEYS_MAX: Final = 1024
TELL_S: Final = 1.0

Serve = Callable[[PeerId, str, DataLink, str], Awaitable[None]]
"""(peer, stream protocol, connection, its network): serves the connection until it is over."""


async def _told(link: DataLink, why: WireError) -> None:
    """Whoever shows a certificate of somebody whom we know hears why that is not enough: its clock may be wrong."""
    stream = FrameStream(PeerId("who asks"), link.channel, link.channel, progress_timeout_s=TELL_S)
    await stream.refuse(why.code, why.detail)


class DataListener:
    """The sockets that listen, and every connection that came by them."""

    def __init__(self, sockets: Sequence[socket.socket], credentials: Credentials, serve: Serve) -> None:
        self._sockets = tuple(sockets)
        self._credentials = credentials
        self._serve = serve
        self._keys: dict[PeerId, bytes] = {}
        self._anchors: dict[PeerId, bytes] = {}
        self._context = credentials.server_context()
        self._open: dict[PeerId, dict[asyncio.Task[None], DataLink]] = {}
        self.vestibule = Vestibule(asyncio.get_running_loop().time)
        self.counts: Counter[str] = Counter()
        """handshakes_done, handshakes_failed."""
        self.on_refused: Callable[[WireError], None] = lambda error: None
        """Told of each handshake that failed."""

    @property
    def port(self) -> int:
        """Of the first socket; all have the same."""
        return int(self._sockets[0].getsockname()[1])

    def believe(self, peer: PeerId, public_key_der: bytes) -> bool:
        """From now on `peer` may come; False: there is no room for one more, and it has p2pd's streams."""
        if not self._sockets:
            return True  # nobody comes to a node, and an anchor costs some time each time that another one goes
        if peer in self._keys or len(self._keys) >= KEYS_MAX:
            return peer in self._keys
        self._keys[peer] = public_key_der
        self._anchors[peer] = self._credentials.anchor(peer, public_key_der)
        self._context.load_verify_locations(cadata=self._anchors[peer])
        return True

    def drop(self, peer: PeerId) -> None:
        """`peer` may come no more, and what it has open ends."""
        if peer in self._keys:
            self._forget({peer})
        for task in self._open.get(peer, ()):
            task.cancel()

    def make_room(self, in_touch: Set[PeerId]) -> None:
        """When all places are taken: forget the keys of those that are not there."""
        if len(self._keys) >= KEYS_MAX:
            self._forget(self._keys.keys() - in_touch)

    def _forget(self, peers: Set[PeerId]) -> None:
        for peer in peers:
            del self._keys[peer], self._anchors[peer]
        self._context = self._credentials.server_context()
        for anchor in self._anchors.values():
            self._context.load_verify_locations(cadata=anchor)

    def believed(self) -> Mapping[PeerId, bytes]:
        """Who may come, with DER of their public keys; to be read only."""
        return self._keys

    def renew(self, credentials: Credentials) -> None:
        """Show this certificate to whoever comes from now on."""
        self._credentials = credentials
        self._forget(set())

    def links(self, peer: PeerId) -> list[DataLink]:
        """Connections that came from it and are open."""
        return list(self._open.get(peer, {}).values())

    async def run(self) -> None:
        """Let others in, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for sock in self._sockets:
                    group.create_task(self._accept(group, sock), name="data connections")
        finally:
            self.close()

    def close(self) -> None:
        """Listen no more."""
        for sock in self._sockets:
            sock.close()

    async def _accept(self, group: asyncio.TaskGroup, sock: socket.socket) -> None:
        async for conn, address in accepted(sock):
            visitor = Visitor(str(address[0]), conn.close)
            if not self.vestibule.enter(visitor):
                conn.close()
                self.on_refused(WireError("too_many_streams", "more handshakes than this site does"))
                continue
            task = group.create_task(self._receive(conn, visitor, self._context), name="data connection")
            visitor.close = task.cancel  # type: ignore[assignment]

    async def _receive(self, conn: socket.socket, visitor: Visitor, context: ssl.SSLContext) -> None:
        link: DataLink | None = None
        try:
            link = await accept_link(conn, context)
            peer = proven_peer(link.certificate(), self._keys)
            life_s = life_left_s(link.certificate())
            link.is_of_node = life_s is not None
            if link.protocol() not in ((PROTOCOL_BULK,) if link.is_of_node else PROTOCOLS):
                raise WireError("bad_handshake", "a data connection for something unknown")
        except (PeerError, WireError) as error:
            if link is not None:
                if isinstance(error, WireError):
                    await _told(link, error)
                link.abort()
            self.counts["handshakes_failed"] += 1
            self.on_refused(error if isinstance(error, WireError) else WireError("bad_handshake", str(error)))
            return
        finally:
            self.vestibule.leave(visitor)
        self.counts["handshakes_done"] += 1
        self.vestibule.note_member(visitor)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(life_s):
                await self._hold(peer, link, visitor.network)

    async def _hold(self, peer: PeerId, link: DataLink, network: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.setdefault(peer, {})[task] = link
        try:
            await self._serve(peer, link.protocol(), link, network)
        finally:
            link.abort()
            del self._open[peer][task]
            if not self._open[peer]:
                del self._open[peer]
