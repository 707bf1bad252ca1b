"""GET /v1/peers, and what a peer finds that tries to connect to us."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dilocoxd.answers.fields import NAME_TOLD, Count, Hex, Seconds, Speed, told


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """A site of an open run that weighs less, and counts in no majority, until it took part often enough."""

    rounds_done: Annotated[Count, told("Entries that name it.")]
    rounds: Annotated[Count, told("admission.probation_rounds: so many are needed.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerNode:
    """A node of another site that takes contributions itself (network.data = "nodes" there)."""

    addresses: Annotated[tuple[str, ...], told("IP addresses with the port, as the site tells. Untrusted.")]
    first_segment: Annotated[Count, told("It takes contributions to segments from this one on ...")]
    stop_segment: Annotated[Count, told("... up to the one before this.")]
    is_reached: Annotated[
        bool, told("We have data connections to it, and send it contributions straight; else to its site.")
    ]
    reason: Annotated[str, told("Why not, in words; empty if it is reached.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One other site, as far as this daemon knows."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    addresses: tuple[str, ...]
    is_known: bool
    is_live: bool
    took_part_last_round: bool
    membership: str
    state: Annotated[str, told("What the site says it does (protocol I11), or dead: it does not answer.")]
    height: Count
    rounds_behind: Annotated[int, told("Our height minus theirs; negative: we are behind.")]
    chain_head: Hex
    state_digest: Hex
    last_seen_s: Annotated[Seconds | None, told("null: not heard of since this daemon started.")]
    step_seconds: Seconds | None
    tokens_per_s: Annotated[Count | None, told("As the peer itself reports; null while it does not train.")]
    contributed_round: Annotated[Count | None, told("Newest round whose entry names it; null: none yet.")]
    bandwidth_bytes_per_s: Annotated[Count, told("Upload bandwidth that the peer itself reports.")]
    link_bytes_per_s: Annotated[Speed | None, told("Measured by us when we sent it payloads; null before the first.")]
    has_data: Annotated[bool, told("Payloads to it travel on data connections (network.data_port); else over p2pd.")]
    no_data_reason: Annotated[str, told("Why not on data connections; empty where they are.")]
    incarnation: Count
    way: Annotated[
        Literal["direct", "relay", ""],
        told("How p2pd is connected to it: directly (a punched hole included), only through a relay; empty: not now."),
    ] = ""
    data_parts: Annotated[
        tuple[Count, ...],
        told('Outer parts on nodes whose nodes send payloads to it themselves (network.data = "nodes").'),
    ] = ()
    nodes: Annotated[
        tuple[PeerNode, ...], told("Its nodes that take contributions themselves; empty: its daemon takes all.")
    ] = ()
    probation: Annotated[Probation | None, told("null: it counts in full.")] = None
    inner_loss: Annotated[
        float | None,
        told("Mean inner loss of its newest phase that went into a round, as the site says; null: it does not say."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinLine:
    """How another machine joins this run."""

    address: str
    command: Annotated[str, told("To type there; in a run that admits by invite, what to type here for a link.")]
    qr: Annotated[tuple[str, ...], told("The command as a QR code: rows of 0 (light) and 1 (dark), margin included.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """How another site is reached, measured just now."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    round_trip_s: Annotated[Seconds, told("Least of some hellos: one round trip and its cryptography.")]
    worst_round_trip_s: Seconds
    is_direct: Annotated[bool | None, told("false: through a relay; null: the connection was closed meanwhile.")]
    address: Annotated[str, told("The other end of the connection; empty if it was closed meanwhile.")]
    clock_offset_s: Annotated[float, told("Its clock minus ours, give or take half the round trip.")]
    download_bytes_per_s: Annotated[Speed | None, told("Of a stored payload, fetched now; null: none of useful size.")]
    upload_bytes_per_s: Annotated[Speed | None, told("Of payloads that we sent it; null: none yet.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedAddress:
    """One address that a peer tried."""

    address: str
    ok: bool
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether others can connect to this site, as one of them found out just now."""

    peer: Annotated[str, told("Who tried.")]
    addresses: tuple[TriedAddress, ...]
