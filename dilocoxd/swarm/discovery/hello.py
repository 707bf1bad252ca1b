"""The hello: who is there, in which run, with which clock; both sides show their newest record."""

import time
from dataclasses import dataclass

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.streams.refusals import other_protocols
from dilocoxd.swarm.streams.streams import PROTOCOL_HELLO, StreamGate, unix_ms
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, Hello


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a peer said about itself in its hello."""

    run_id: RunId
    protocol_minor: int
    clock_offset_s: float
    """Its clock minus ours, give or take half the round trip."""
    round_trip_s: float
    record: bytes
    """Its signed record, not verified yet; may be empty."""
    data_port: int = 0
    """Where it takes data connections; 0: nowhere."""


async def introduce(gate: StreamGate, peer: PeerId, *, record: bytes, timeout_s: float = 10.0) -> Introduction:
    """Say hello to a connected peer. Raises Refused (version, run, ban), PeerError, WireError."""
    started_ms, started = unix_ms(), time.monotonic()
    stream = await gate.open(peer, PROTOCOL_HELLO, timeout_s=timeout_s, record=record)
    try:
        frame = await stream.read(FrameKind.HELLO, timeout_s=timeout_s)
    finally:
        stream.close()
    round_trip_s = time.monotonic() - started
    hello = PEER_MESSAGES.decode(frame.message)
    if not isinstance(hello, Hello):
        raise WireError("malformed", "HELLO frame without a Hello message")
    if hello.protocol_major != PROTOCOL_MAJOR:
        raise WireError("wrong_protocol", other_protocols(asked=hello.protocol_major, asking=PROTOCOL_MAJOR))
    if not hello.run_id or (gate.run_id is not None and hello.run_id != gate.run_id):
        raise PeerError(f"{peer} is in run {hello.run_id!r}, not in ours")
    gate.doors.accept_answer(peer, hello, unix_ms())
    offset_s = (hello.unix_ms - started_ms) / 1000 - round_trip_s / 2
    return Introduction(
        RunId(hello.run_id), hello.protocol_minor, offset_s, round_trip_s, hello.record, hello.data_port
    )
