"""What a head and a node say of payloads that other sites send straight to the node (`network.data = "nodes"`).

They go the way of a part's requests, and in their order: what was granted to the node and is called off is written no
more when the next request writes there. The process that stands for a part at the head reads some of them, for it need
not move what the node has. Source: docs/adr/0046-nodes-receive-contributions.md.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.wire.codec import Bounds, Length, Lines, Name, Uint
from dilocoxd.wire.local.uploads import HeaderBytes, Port
from dilocoxd.wire.messages import HOSTS_MAX

THERE_MAX: Final = 1 << 17
"""Places that have come to one node without the head."""
HELD: Final = "held"
"""In place of a code: the head has this payload, and its sender gets a receipt at once."""


@dataclass(frozen=True, slots=True)
class ReceiveSegments:
    """Take contributions to the segments [first, stop) of the part, at this port (0: any that is free)."""

    first: Uint
    stop: Uint
    port: Port


@dataclass(frozen=True, slots=True)
class InletState:
    """Where the node takes them; port 0: nowhere, and why."""

    port: Port
    hosts: Annotated[tuple[Name, ...], Length(0, HOSTS_MAX)]
    reason: Lines = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """Another site, which may come; an empty key: it may come no more."""

    peer: Name
    public_key: Annotated[bytes, Length(0, 1024)]


@dataclass(frozen=True, slots=True)
class CallerRejected:
    """So many inputs of this site were refused as bad there since the node said so last."""

    peer: Name
    code: Name
    count: Annotated[int, Bounds(1, 2**31 - 1)]


@dataclass(frozen=True, slots=True)
class AskPlace:
    """A site offers this. Answer: PayloadPlace or PayloadRefused."""

    request: Uint
    peer: Name
    header: HeaderBytes


@dataclass(frozen=True, slots=True)
class PayloadPlace:
    """It goes here, and nobody else writes there."""

    request: Uint
    buffer: Name
    offset: Uint
    length: Uint


@dataclass(frozen=True, slots=True)
class PayloadRefused:
    """It is not wanted there; also in place of PayloadHeard, and of a place that was given before."""

    request: Uint
    code: Name
    detail: Lines = ""


@dataclass(frozen=True, slots=True)
class PayloadArrived:
    """All of it lies in its place, and has the hash of its header. Answer: PayloadHeard or PayloadRefused."""

    request: Uint


@dataclass(frozen=True, slots=True)
class PayloadHeard:
    """The head counts it as received, and does not move it there."""

    request: Uint
    buffer: Name
    offset: Uint
    length: Uint


@dataclass(frozen=True, slots=True)
class PayloadsThere:
    """What the node has of earlier lives of the part: offset, length, offset, length, ... It never hears of this."""

    buffer: Name
    places: Annotated[tuple[Uint, ...], Length(0, 2 * THERE_MAX)]


@dataclass(frozen=True, slots=True)
class PayloadHere:
    """The head has other bytes for this place, and moves them as ever. The node never hears of it."""

    buffer: Name
    offset: Uint
    length: Uint


@dataclass(frozen=True, slots=True)
class PayloadsOver:
    """Nothing of attempts before this one is written any more."""

    round: Uint
    attempt: Uint


TO_INLET: Final = (ReceiveSegments, Caller, PayloadPlace, PayloadRefused, PayloadHeard, PayloadsOver)
FROM_INLET: Final = (InletState, CallerRejected, AskPlace, PayloadArrived)
