"""How other sites reach this one: the section [network] of site.toml."""

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from dilocoxd.config.addresses import DEFAULT_PORT, is_host, read_address
from dilocoxd.config.fields import Section, knob
from dilocoxd.ids import is_peer_id

Addresses = Annotated[tuple[str, ...], Field(strict=False)]
BYTES_PER_S_MIN: Final = 4096
"""Below this not even the messages of a round get through in time."""


class NetworkSection(Section):
    """How other sites reach this one."""

    host: Annotated[
        str,
        knob(
            "Address the daemon listens on for other sites, or a name of this machine; 0.0.0.0 is all of IPv4, ::"
            " all of IPv6 and IPv4.",
            unit="IP address",
            cost="none.",
            min_length=2,
            max_length=64,
        ),
    ] = "0.0.0.0"
    port: Annotated[
        int,
        knob("TCP port for other sites; keep it fixed, others remember it.", unit="port", cost="none.", ge=1, le=65535),
    ] = DEFAULT_PORT
    announce: Annotated[
        Addresses,
        knob(
            "Addresses that others are told to use, such as the public one in front of a NAT; empty: the local ones."
            " An IP address or a name will do, with :PORT if it is not network.port.",
            unit="addresses",
            cost="a wrong one makes every join of others slow or impossible.",
            max_length=16,
        ),
    ] = ()
    bootstrap: Annotated[
        Addresses,
        knob(
            "Peers to contact first. Peers met later are remembered in peers.json.",
            unit="addresses",
            cost="dead ones delay the start by some seconds each.",
            max_length=256,
        ),
    ] = ()
    relays: Annotated[
        Addresses,
        knob(
            "Reachable sites that relay for this one, which cannot be reached from outside (behind a NAT);"
            " needed only to reach others of the same kind.",
            unit="multiaddresses",
            cost="relayed bytes are slow.",
            max_length=16,
        ),
    ] = ()
    hole_punching: Annotated[
        bool,
        knob(
            "Go on without the relay where the routers of both sites allow it: both open a connection at once (DCUtR)."
            " Needs four sites at public addresses that see where this one calls from.",
            unit="flag",
            cost="p2pd also dials back whoever asks whether it can be reached (AutoNAT), at the asker's address.",
        ),
    ] = True
    relay_for_others: Annotated[
        bool,
        knob(
            "Relay for sites that cannot be reached from outside and name this one in their relays. It relays for"
            " anybody who asks, members or not.",
            unit="flag",
            cost="their bytes go through this site's link, outside its limits.",
        ),
    ] = False
    peers_allowed: Annotated[
        Addresses,
        knob(
            "Peer ids that may talk to this site; empty: every member of the run (of a closed run: nobody).",
            unit="peer ids",
            cost="who is not listed here is refused, also a friend who joins later.",
            max_length=1024,
        ),
    ] = ()
    nat_port_map: Annotated[
        bool, knob("Ask the router for a port (UPnP, NAT-PMP).", unit="flag", cost="not every router likes it.")
    ] = False
    lan_announce: Annotated[
        Literal["terminal", "always", "never"],
        knob(
            "When to tell the local network, by mDNS, of the run and of this site's name, id, addresses and port, so"
            " that `dilocoxd join` without a link finds it: while the daemon runs in a terminal, always, or never. An"
            " invite is never told.",
            unit="choice",
            cost="everybody on that network knows of the run.",
        ),
    ] = "terminal"
    streams_per_peer: Annotated[
        int,
        knob(
            "Parallel streams for large payloads to one peer; more help at high latency.",
            unit="streams",
            cost="memory for each.",
            ge=1,
            le=32,
        ),
    ] = 4
    data_port: Annotated[
        int,
        knob(
            "TCP port for data connections, by which other sites send payloads without the detour through p2pd. 0: a"
            " free one at each start. Behind a firewall or in a container give one, and open it like network.port;"
            " where it cannot be reached p2pd's streams carry everything.",
            unit="port",
            cost="one more open port.",
            ge=0,
            le=65535,
        ),
    ] = 0
    data_connections: Annotated[
        int,
        knob(
            "Data connections to one peer that are used at a time; more help on long fat links. 0: none, nothing"
            " listens on network.data_port, and p2pd's streams carry all payloads.",
            unit="connections",
            cost="some 100 kB of memory for each.",
            ge=0,
            le=32,
        ),
    ] = 8
    data: Annotated[
        Literal["head", "nodes"],
        knob(
            "Whose link carries payloads of outer parts that run on nodes (cluster.outer_parts): the head's, or that of"
            " the nodes themselves, by data connections of their own: they send to other sites, and take contributions"
            " to their segments at a port of theirs (network.node_data_port). Where a node does not reach a site the"
            " head sends, where a site does not reach a node the head receives. Results come to the head in any case.",
            unit="choice",
            cost="nodes: they need a way to the data ports of other sites and a port that others reach, the head a"
            " clock that is right to a minute.",
        ),
    ] = "head"
    node_data_port: Annotated[
        int,
        knob(
            "TCP port of each node at which other sites bring contributions, with network.data = nodes. 0: a free one."
            " Behind a firewall give one, and open it on the nodes; where it is not reached the head receives.",
            unit="port",
            cost="one more open port on each node.",
            ge=0,
            le=65535,
        ),
    ] = 0
    upload_bytes_per_s_max: Annotated[
        int,
        knob(
            "Most bytes sent per second; 0 is no limit. Sites take turns of a piece.",
            unit="bytes/s",
            cost="exchanges last longer.",
            ge=0,
        ),
    ] = 0
    serve_bytes_per_s_max: Annotated[
        int,
        knob(
            "Most bytes sent per second to peers that catch up (snapshots, entries); 0 is no limit. Whatever it is,"
            " serving takes no more than a tenth of the upload while an exchange sends.",
            unit="bytes/s",
            cost="newcomers wait longer.",
            ge=0,
        ),
    ] = 0

    @field_validator("upload_bytes_per_s_max", "serve_bytes_per_s_max")
    @classmethod
    def _is_rate(cls, value: int) -> int:
        if 0 < value < BYTES_PER_S_MIN:
            raise ValueError(
                f"{value} bytes/s is too slow for any round; give at least {BYTES_PER_S_MIN}, or 0 for no limit"
            )
        return value

    @field_validator("announce", "bootstrap", "relays")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            read_address(text)
        return value

    @field_validator("peers_allowed")
    @classmethod
    def _are_peer_ids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not is_peer_id(text):
                raise ValueError(
                    f"network.peers_allowed: {text!r} is no peer id; write it as `dilocoxd id` prints it there"
                )
        return value

    @field_validator("host")
    @classmethod
    def _is_host(cls, value: str) -> str:
        if not is_host(value):
            raise ValueError(
                f"network.host = {value!r} is neither an IP address nor the name of a machine; give an address of this"
                " machine, 0.0.0.0 for all"
            )
        return value

    @property
    def announced(self) -> tuple[str, ...]:
        """`announce` as multiaddresses without a peer."""
        return tuple(read_address(text).multiaddr(self.port) for text in self.announce)

    @field_validator("relays")
    @classmethod
    def _have_peer_ids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if "/p2p/" not in text:
                raise ValueError(f"address {text!r} names no peer; append /p2p/ and the peer's id")
        return value
