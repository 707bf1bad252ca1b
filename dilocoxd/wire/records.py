"""Signed heartbeat record: what a peer says about itself, and the text it signs (protocol/ chapter membership).

Beside it, unsigned and only when asked: the losses of its phases (resource `losses/<phase>`, protocol L20).

Nothing in a record is free text; a name has few characters, of few kinds. A signed record is ``[record bytes, public
key, signature]``: the record travels as the very bytes that were signed. Pure: the signature itself is checked in
`dilocoxd.swarm.discovery.records`.
"""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PEER_ID_FORM, PeerId, RunId, is_peer_id
from dilocoxd.site_names import NAME_CHARS_MAX, is_site_name
from dilocoxd.wire.codec import Bounds, Length, Name, Sha256, Uint, decode_struct, encode_struct
from dilocoxd.wire.messages import RECORD_BYTES_MAX

ADDRESSES_MAX: Final = 16
PEER_STATES: Final = ("joining", "catching_up", "preparing", "training", "paused", "halted", "leaving", "left")

PHASES_MAX: Final = 1024
"""Losses in one answer."""
MICRO: Final = 1_000_000
MICRO_LOSS_MAX: Final = 1000 * MICRO
PHASE_LOSSES_BYTES_MAX: Final = 16 << 10
"""Of one answer: an item takes at most 15 bytes."""

_RECORD_DOMAIN: Final = b"dilocoxd/2/record\0"
_P2P: Final = f"/p2p/{PEER_ID_FORM}"
_ADDRESS: Final = re.compile(
    rf"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[A-Za-z0-9.:_-]{{1,253}})/tcp/(?P<port>[0-9]{{1,5}})"
    rf"({_P2P}(/p2p-circuit({_P2P})?)?)?"
)
_IP_VERSIONS: Final = {"ip4": 4, "ip6": 6}


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What one peer says about itself at one moment. (incarnation, sequence) orders the records of a peer."""

    peer: Annotated[PeerId, Length(40, 60)]
    run_id: Annotated[RunId, Length(1, 256)]
    protocol_major: Uint
    protocol_minor: Uint
    incarnation: Uint
    """Counter of daemon starts on this identity, persisted; any record of a higher one replaces those of lower ones."""
    sequence: Uint
    """Counter of records within one incarnation."""
    unix_ms: Uint
    """Sender's clock when it signed."""
    ttl_ms: Annotated[int, Bounds(1, 24 * 3600 * 1000)]
    """How long after `unix_ms` the record counts as news of a live peer."""
    state: Name
    """One of PEER_STATES."""
    addresses: Annotated[tuple[Annotated[str, Length(1, 384)], ...], Length(0, ADDRESSES_MAX)]
    """Multiaddrs (TCP only) at which the sender says it can be reached."""
    chain_head: Sha256
    chain_height: Uint
    chain_weight: Uint
    """Tokens contributed by all entries of the sender's chain."""
    state_digest: Sha256
    """Of the shared state at `chain_height`; equal heads with unequal digests are an alarm."""
    contributed_round: Annotated[int, Bounds(-1, 2**63 - 1)]
    """Highest round whose entry names the sender; -1 = none yet."""
    milli_steps_per_s: Uint
    """Inner steps per 1000 s; signed data holds no floating point numbers."""
    tokens_per_s: Uint
    upload_bytes_per_s: Uint
    name: Annotated[str, Length(0, NAME_CHARS_MAX)] = ""
    """What its operator calls it, for people only; anybody may say anything."""

    @property
    def steps_per_s(self) -> float:
        return self.milli_steps_per_s / 1000

    @property
    def order(self) -> tuple[int, int]:
        return (self.incarnation, self.sequence)


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """A record as it travels; `body` is exactly what was signed."""

    body: Annotated[bytes, Length(1, RECORD_BYTES_MAX)]
    public_key: Annotated[bytes, Length(1, 1024)]
    signature: Annotated[bytes, Length(1, 1024)]


def record_text(body: bytes) -> bytes:
    """Exact bytes that a record's signature covers."""
    return _RECORD_DOMAIN + body


def is_address(text: str) -> bool:
    """Whether the text is a multiaddr that a record may hold: TCP, optionally with peer id and relay."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        return False
    if found["kind"] not in _IP_VERSIONS:
        return True
    try:
        return ipaddress.ip_address(found["host"]).version == _IP_VERSIONS[found["kind"]]
    except ValueError:
        return False


def _check(record: PeerRecord) -> None:
    if not is_peer_id(record.peer):
        raise WireError("malformed", "PeerRecord.peer is not a peer id")
    if record.state not in PEER_STATES:
        raise WireError("malformed", "PeerRecord.state is unknown")
    if not all(is_address(address) for address in record.addresses):
        raise WireError("malformed", "PeerRecord.addresses holds something else than TCP multiaddrs")
    if not is_site_name(record.name):
        raise WireError("malformed", "PeerRecord.name holds characters that a name must not have")


def encode_record(record: PeerRecord) -> bytes:
    """The bytes that get signed. Raises WireError if the record breaks a rule (then it is our own bug)."""
    body = encode_struct(record)
    decode_record(body)
    return body


def decode_record(body: bytes) -> PeerRecord:
    """The record in `body`. Raises WireError."""
    record = decode_struct(PeerRecord, body, size_max=RECORD_BYTES_MAX)
    _check(record)
    return record


def encode_signed(signed: SignedRecord) -> bytes:
    """Bytes for the DHT, gossip and peers.json. Raises WireError(too_large)."""
    data = encode_struct(signed)
    if len(data) > RECORD_BYTES_MAX:
        raise WireError("too_large", f"signed record of {len(data)} bytes, at most {RECORD_BYTES_MAX}")
    return data


def decode_signed(data: bytes) -> SignedRecord:
    """The three parts, nothing verified yet. Raises WireError."""
    return decode_struct(SignedRecord, data, size_max=RECORD_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class PhaseLoss:
    """Mean inner loss of one phase of the responder, in millionths."""

    phase: Uint
    micro_loss: Annotated[int, Bounds(0, MICRO_LOSS_MAX)]

    @property
    def loss(self) -> float:
        return self.micro_loss / MICRO


@dataclass(frozen=True, slots=True)
class PhaseLosses:
    """What `losses/<phase>` holds: only a claim, and only for people."""

    items: Annotated[tuple[PhaseLoss, ...], Length(0, PHASES_MAX)]


def encode_phase_losses(losses: Mapping[int, float], first: int) -> bytes:
    """The answer to `losses/<first>`: ascending, as many as fit; what is no loss that can be told is left out."""
    known = sorted(phase for phase in losses if phase >= first)
    told = [(phase, losses[phase]) for phase in known if math.isfinite(losses[phase])]
    items = [PhaseLoss(phase, round(MICRO * loss)) for phase, loss in told if 0 <= loss <= MICRO_LOSS_MAX / MICRO]
    return encode_struct(PhaseLosses(tuple(items[:PHASES_MAX])))


def decode_phase_losses(data: bytes, first: int) -> tuple[PhaseLoss, ...]:
    """What a peer answered to `losses/<first>`. Raises WireError."""
    items = decode_struct(PhaseLosses, data, size_max=PHASE_LOSSES_BYTES_MAX).items
    lowest = first
    for item in items:
        if item.phase < lowest:
            raise WireError("malformed", f"phase {item.phase} where {lowest} is the lowest that may follow")
        lowest = item.phase + 1
    return items
