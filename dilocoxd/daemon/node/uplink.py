"""Data connections of a node to other sites, in the name of its own: all parts that run on the node send by them.

The head says which sites there are and where, and certifies our TLS key; nothing of it is kept on disk. A site whose
port does not answer from here is tried in the background, as a daemon does. Source:
docs/adr/0045-nodes-send-payloads.md.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from dilocoxd.daemon.node.inlet import Inlet
from dilocoxd.daemon.node.no_streams import NoStreams, NotReached
from dilocoxd.errors import PeerError, StoreError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.direct.certificates import new_key
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.listener import DataListener
from dilocoxd.swarm.direct.nodes import NODE_LIFE_S, NODES_SINCE_MINOR, NodeCredentials, public_key_of
from dilocoxd.swarm.direct.plane import DataPlane
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import StreamGate
from dilocoxd.wire.local.uploads import (
    DONE,
    FAILED,
    REFUSED,
    UNREACHED,
    PayloadSent,
    UploadPass,
    UploadPeer,
    UploadWay,
)
from dilocoxd.wire.messages import SegmentHeader

PEERS_MAX: Final = 1024
DETAIL_MAX: Final = 1000


class _Ways:
    """Everything that begins with the first pass of a head."""

    def __init__(self, credentials: NodeCredentials, got: UploadPass, peers: Mapping[PeerId, UploadPeer]) -> None:
        loop = asyncio.get_running_loop()
        self.made_for = (got.run_id, got.connections, got.lanes)
        listener = DataListener((), credentials, _serve_nobody)
        self._peers = peers
        self.plane = DataPlane(credentials, listener, self._hosts, self._key_of, got.run_id, got.connections)
        self.plane.on_hosts = self._on_hosts
        self.plane.minor_min, self.plane.slot_wait_s = NODES_SINCE_MINOR, None
        gate = StreamGate(NoStreams(), RunId(got.run_id), PeerGuard(loop.time), Doorkeeper())
        gate.data = self.plane
        self.gate, self.sender = gate, BulkSender(gate, lanes_max=got.lanes)
        self.plane.speed_to = self.sender.speeds.to
        for peer in peers.values():
            self.plane.meet(PeerId(peer.peer), peer.port)

    async def _hosts(self, peer: PeerId) -> list[str]:
        known = self._peers.get(peer)
        return [known.host] if known is not None else []

    def _key_of(self, peer: PeerId) -> bytes:
        known = self._peers.get(peer)
        return known.public_key if known is not None else b""

    def _on_hosts(self, heard: HostsHeard) -> None:
        """What is on its way there is sent by the head at once, and not when a time-out is over."""
        for peer in heard.silent & self._peers.keys():
            self.plane.drop(peer)
            self.plane.meet(peer, self._peers[peer].port)


async def _serve_nobody(peer: PeerId, protocol: str, link: DataLink, network: str) -> None:
    raise AssertionError("a node listens for nobody")


class Uplink:
    """`run` until cancelled; everything else may be called in between."""

    def __init__(self, announce: str = "", head: str = "") -> None:
        """As of Inlet."""
        self._key = new_key()
        self.public_key = public_key_of(self._key)
        """DER, to be certified by the head."""
        self._peers: dict[PeerId, UploadPeer] = {}
        self.inlet = Inlet(announce, head, lambda: [known.host for known in self._peers.values()])
        """What comes in, by the same certificate; to be run as well."""
        self._told_by: dict[PeerId, set[object]] = {}
        """Lives of parts whose head knows each of them."""
        self._ways: _Ways | None = None
        self._changed, self._certified = asyncio.Event(), asyncio.Event()

    def take_pass(self, got: UploadPass) -> None:
        """What we may say for our site from now on. Raises WireError if it makes no sense."""
        credentials, ways = NodeCredentials(self._key, got.certificate), self._ways
        if ways is None or ways.made_for != (got.run_id, got.connections, got.lanes):
            ways = self._ways = _Ways(credentials, got, self._peers)
            self._changed.set()
        ways.plane.renew(credentials)
        self.inlet.certify(credentials, got.run_id)
        self._certified.set()
        port = got.data_port
        ways.gate.doors.own, ways.gate.data_port = got.membership, lambda: port

    def take_peer(self, got: UploadPeer, teller: object) -> None:
        """A site that payloads may be sent to, or one that they are sent to no more. `teller`: see `leave`."""
        peer = PeerId(got.peer)
        if not got.port:
            self._forget(peer)
        elif peer in self._peers or len(self._peers) < PEERS_MAX:
            self._peers[peer] = got
            self._told_by.setdefault(peer, set()).add(teller)
            if self._ways is not None:
                self._ways.plane.meet(peer, got.port)

    def leave(self, teller: object) -> None:
        """It tells us nothing more, nor that a site is evicted: what it alone told is forgotten."""
        for peer, tellers in list(self._told_by.items()):
            tellers.discard(teller)
            if not tellers:
                self._forget(peer)

    def _forget(self, peer: PeerId) -> None:
        self._peers.pop(peer, None)
        self._told_by.pop(peer, None)
        if self._ways is not None:
            self._ways.plane.drop(peer)

    def ways(self) -> list[UploadWay]:
        """Which of them are reached from here."""
        if self._ways is None:
            return []
        views = {peer: self._ways.plane.view(peer) for peer in self._peers}
        return [UploadWay(peer, view.is_data, view.reason[:DETAIL_MAX]) for peer, view in views.items()]

    async def run(self) -> None:
        """Try the ports of all sites that we were told of."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            assert self._ways is not None
            async with asyncio.TaskGroup() as group:
                trying = group.create_task(self._ways.plane.run(lambda: set(self._peers)), name="data connections")
                await self._until_over()
                trying.cancel()

    async def _until_over(self) -> None:
        """Another head certifies us, or one with other settings; or nobody any more, and we forget whom we know."""
        while not self._changed.is_set():
            self._certified.clear()
            try:
                async with asyncio.timeout(NODE_LIFE_S):
                    await self._certified.wait()
            except TimeoutError:
                self._ways = None
                self.inlet.end()
                self._peers.clear()
                self._told_by.clear()
                return

    async def send(self, peer: PeerId, header: SegmentHeader, source: Region, *, is_new: bool) -> PayloadSent:
        """How it ended, for a request that the caller numbers."""
        if self._ways is None:
            return PayloadSent(0, UNREACHED, detail="the head has not certified this node yet")
        sent: list[int] = []
        try:
            await self._ways.sender.send_segment(
                peer, header, source, attempts=1, is_new=is_new, note_sent=sent.append
            )  # fmt: skip
        except NotReached as error:
            return PayloadSent(0, UNREACHED, detail=str(error)[:DETAIL_MAX])
        except Refused as refused:
            return PayloadSent(0, REFUSED, sum(sent), refused.code[:200], refused.detail[:DETAIL_MAX])
        except (PeerError, StoreError) as error:
            return PayloadSent(0, FAILED, sum(sent), detail=str(error)[:DETAIL_MAX])
        return PayloadSent(0, DONE, sum(sent))
