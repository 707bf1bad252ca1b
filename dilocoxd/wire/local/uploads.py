"""What a head and a node say of payloads that the node sends to other sites itself (`network.data = "nodes"`).

They go the way of a part's requests, and in their order: a payload that is called off is read no more when the next
request writes where it lay. Source: docs/adr/0045-nodes-send-payloads.md.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.wire.admission import MEMBERSHIP_BYTES_MAX
from dilocoxd.wire.codec import Bounds, Length, Lines, Name, Uint

Port = Annotated[int, Bounds(0, 65535)]
HeaderBytes = Annotated[bytes, Length(1, 64 * 1024)]
"""A SegmentHeader as it is offered (protocol S8)."""
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
UNREACHED: Final = "unreached"
NOT_HERE: Final = "not_here"
"""How it ended: the site confirmed all of it, does not want it, or was lost meanwhile; no connection to it can be had,
or what lies here is not what the header names. After the last two nothing was sent."""


@dataclass(frozen=True, slots=True)
class AskUploadKey:
    """Payloads are to be sent from there. Answer: UploadKey."""


@dataclass(frozen=True, slots=True)
class UploadKey:
    """The TLS key of the node's process, to be certified."""

    public_key: Annotated[bytes, Length(1, 512)]
    """DER, SubjectPublicKeyInfo."""


@dataclass(frozen=True, slots=True)
class UploadPass:
    """What the node needs to speak for its site, for a while; the newest counts."""

    certificate: Annotated[bytes, Length(1, 4096)]
    """DER (protocol I12)."""
    run_id: Name
    membership: Annotated[bytes, Length(0, MEMBERSHIP_BYTES_MAX)]
    """Of the site, to be shown in each HELLO; empty where the run asks for none."""
    data_port: Port
    """Of the head, as each HELLO names it."""
    connections: Annotated[int, Bounds(1, 32)]
    """To one site at a time."""
    lanes: Annotated[int, Bounds(1, 32)]
    """For one large payload."""


@dataclass(frozen=True, slots=True)
class UploadPeer:
    """Another site, and where the head reaches its data port; port 0: it is to be forgotten."""

    peer: Name
    public_key: Annotated[bytes, Length(0, 1024)]
    host: Name
    port: Port


@dataclass(frozen=True, slots=True)
class UploadWay:
    """Whether the node reaches that port, and if not, why."""

    peer: Name
    is_reached: bool
    reason: Lines


@dataclass(frozen=True, slots=True)
class SendPayload:
    """Send what lies at this place of a buffer of the part. Answer: PayloadSent, and before it signs of life."""

    request: Uint
    peer: Name
    buffer: Name
    offset: Uint
    header: HeaderBytes
    is_new: bool
    """The site will hardly have any of it yet."""


@dataclass(frozen=True, slots=True)
class StopPayload:
    """Nobody waits for it any more, and its place may be written. Answer: PayloadSent, unless it was on its way."""

    request: Uint


@dataclass(frozen=True, slots=True)
class PayloadsMove:
    """Said now and then while payloads are under way."""


@dataclass(frozen=True, slots=True)
class PayloadSent:
    """How it ended."""

    request: Uint
    outcome: Name
    num_bytes: Uint = 0
    """That left for it, of a payload that the site confirmed or not."""
    code: Name = ""
    """With `refused`: the site's."""
    detail: Lines = ""


TO_NODE: Final = (AskUploadKey, UploadPass, UploadPeer, SendPayload, StopPayload)
FROM_NODE: Final = (UploadKey, UploadWay, PayloadsMove, PayloadSent)
