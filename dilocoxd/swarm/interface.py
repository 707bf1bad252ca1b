"""What the swarm is told, and whom it tells: settings, our own description, and the listener that the daemon is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dilocoxd.ids import Digest, PeerId, RunId
from dilocoxd.machines.admission.certificates import Authorities
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.p2pd.settings import NodeSettings
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.messages import SegmentHeader
from dilocoxd.wire.records import PeerRecord


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """What run.toml and site.toml say about the network."""

    run_id: RunId
    identity: Identity
    peers_json: Path
    socket_dir: Path
    log_path: Path | None = None
    """Of p2pd."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/31337",)
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    relay_for_others: bool = False
    map_port: bool = False
    hole_punching: bool = True
    upload_bytes_per_s_max: int = 0
    serve_bytes_per_s_max: int = 0
    name: str = ""
    """What the operator calls this site."""
    streams_per_peer: int = 4
    """For one large payload."""
    data_port: int = 0
    """Where others reach us by data connections; 0: a port that the kernel chooses."""
    data_connections: int = 8
    """To one peer at a time; 0: none at all, p2pd's streams carry everything."""
    allowed_peers: frozenset[PeerId] | None = None
    """None: every peer of the run is welcome."""
    authorities: Authorities | None = None
    """Who admits sites to the run; None: it asks for no membership."""
    membership: bytes = b""
    """Our own, encoded."""
    members_json: Path | None = None
    startup_timeout_s: float = 60.0

    def for_p2pd(self, is_member: Callable[[PeerId], bool], is_evicted: Callable[[PeerId], bool]) -> NodeSettings:
        """How p2pd is to be run."""
        allowed = self.allowed_peers
        own = f"/p2p/{self.identity.peer_id}"
        return NodeSettings(
            self.identity.path,
            self.socket_dir,
            self.listen,
            tuple(address.removesuffix(own) for address in self.announce),
            str(self.run_id),
            self.relays,
            self.relay_for_others,
            self.map_port,
            # Who names relays cannot be reached otherwise; who announces an address can.
            "private" if self.relays else "public" if self.announce else None,
            self.startup_timeout_s,
            hole_punching=self.hole_punching,
            may_ask=lambda peer: (allowed is None or peer in allowed) and is_member(peer),
            is_evicted=is_evicted,
            log_path=self.log_path,
        )


@dataclass(frozen=True, slots=True)
class SelfDescription:
    """What our next record shall say about us."""

    state: str
    chain_head: Digest
    chain_height: int
    chain_weight: int
    state_digest: Digest
    contributed_round: int = -1
    steps_per_s: float = 0.0
    tokens_per_s: float = 0.0


class Listener(Protocol):
    """What the daemon does with what arrives."""

    def describe(self) -> SelfDescription:
        """Our state, for the next heartbeat."""
        ...

    def on_record(self, record: PeerRecord, is_own_word: bool) -> None:
        """Newer record of a peer, verified; `is_own_word`: from that peer itself, not from who passes it on."""
        ...

    def on_contact(self, peer: PeerId) -> None:
        """This peer has just exchanged hellos with us: it is alive."""
        ...

    def on_gone(self, peer: PeerId) -> None:
        """Nobody is there any more: its host has ended all connections, and refuses others."""
        ...

    def on_hosts(self, heard: HostsHeard) -> None:
        """Which hosts answer; told while one does not, and when it does again."""
        ...

    def on_moved(self, peers: frozenset[PeerId]) -> None:
        """Of these, bytes came by data connections of their own; told about once a second while they do."""
        ...

    async def on_message(self, peer: PeerId, message: Any) -> None:
        """Any message of PEER_MESSAGES except Records and Hello; while this waits, that peer's stream waits."""
        ...

    def on_evicted(self, peer: PeerId) -> None:
        """This peer is no member of the run any more."""
        ...

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        """Where an offered payload goes (see bulk.Accept)."""
        ...

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        """This payload is there, complete and verified."""
        ...

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        """Bytes that a peer asks for (see fetch.OpenResource)."""
        ...
