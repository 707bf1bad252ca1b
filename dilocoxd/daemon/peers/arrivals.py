"""Hands what arrives from other peers to the part that it is for. Implements swarm.interface.Listener.

The network is up before the round machine exists: until then messages of rounds are dropped (they are repeated) and
payloads are refused as busy.
"""

from collections.abc import Callable
from typing import Any, get_args

from dilocoxd.daemon.peers.dial_back import RESOURCE, DialBack
from dilocoxd.daemon.peers.membership import MembershipDriver
from dilocoxd.daemon.peers.port_book import PortBook
from dilocoxd.daemon.peers.serving import Library, serve_bytes
from dilocoxd.daemon.round.driver import RoundDriver
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.swarm.interface import SelfDescription
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.messages import DataPorts, FalseSum, SegmentHeader
from dilocoxd.wire.records import PeerRecord

ROUND_MESSAGES = get_args(RoundMessage)


class Arrivals:
    """Branches only. `membership` is joined before the network starts, `rounds` when the payload sizes are known."""

    def __init__(self, describe: Callable[[], SelfDescription], library: Library, dial_back: DialBack) -> None:
        self.describe = describe
        self._library = library
        self._dial_back = dial_back
        self.membership: MembershipDriver | None = None
        self.rounds: RoundDriver | None = None
        self.on_false_sum: Callable[[PeerId, FalseSum], None] = lambda peer, message: None
        """Runs without audits have no ear for it."""
        self.ports = PortBook()
        """Of nodes of other sites; what is said before the round machine exists counts, too."""
        self.on_met: Callable[[PeerId], None] = lambda peer: None
        """Told of each contact, where others are to hear of nodes of ours."""

    def on_record(self, record: PeerRecord, is_own_word: bool) -> None:
        """News of a peer."""
        assert self.membership is not None, "joined before the network starts"
        self.membership.on_record(record, is_own_word)

    def on_contact(self, peer: PeerId) -> None:
        """A peer answered us."""
        assert self.membership is not None, "joined before the network starts"
        self.membership.on_contact(peer)
        self.on_met(peer)

    def on_evicted(self, peer: PeerId) -> None:
        """A member was evicted."""
        assert self.membership is not None, "joined before the network starts"
        self.membership.on_evicted(peer)

    def on_gone(self, peer: PeerId) -> None:
        """Where a peer was nobody is."""
        assert self.membership is not None, "joined before the network starts"
        self.membership.on_gone(peer)

    def on_hosts(self, heard: HostsHeard) -> None:
        """Which hosts answer."""
        assert self.membership is not None, "joined before the network starts"
        self.membership.on_hosts(heard)

    def on_moved(self, peers: frozenset[PeerId]) -> None:
        """Bytes come from them."""
        assert self.membership is not None, "joined before the network starts"
        self.membership.on_moved(peers)

    async def on_message(self, peer: PeerId, message: Any) -> None:
        """A peer's message, in its order. Raises WireError for one that is none of a round."""
        if isinstance(message, FalseSum):
            self.on_false_sum(peer, message)
            return
        if isinstance(message, DataPorts):
            self.ports.take(peer, message)
            return
        if not isinstance(message, ROUND_MESSAGES):
            raise WireError("unexpected_message", type(message).__name__)
        if self.rounds is not None:
            await self.rounds.tell_message(peer, message)

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        """Where a segment goes. Raises WireError."""
        if self.rounds is None:
            raise WireError("busy", "this peer is still starting")
        return self.rounds.accept(peer, header)

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        """A segment is complete."""
        if self.rounds is not None and self.rounds.transfers is not None:
            self.rounds.transfers.received(peer, header)

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        """Bytes that a peer asks for. Raises WireError."""
        if name == RESOURCE:
            return serve_bytes(await self._dial_back.answer(peer))
        return await self._library.open(peer, name)
