"""Keeps our places at the relays that site.toml names: sites that cannot reach us directly reach us through one.

Speaks the first half of libp2p's circuit relay protocol (version 2, "hop": RESERVE) over a stream of p2pd, which does
the rest. p2pd would reserve by itself, but only three minutes after its start when fewer than four relays are known.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.addresses import parse_address
from dilocoxd.telemetry.alerts import raised
from dilocoxd.telemetry.catalogue import Event

HOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/hop"
RESERVE: Final = b"\x02\x08\x00"
"""Length 2, then HopMessage{type = RESERVE}."""
STATUS_OK: Final = 100
DENIED: Final = b"\x05\x08\x02\x28\xca\x01"
"""Length 5, then HopMessage{type = STATUS, status = PERMISSION_DENIED (202)}."""
ANSWER_BYTES_MAX: Final = 4096
ANSWER_TIMEOUT_S: Final = 10.0
RENEW_EVERY_S: Final = 20.0
"""A relay forgets us when the connection breaks; asking again is one small message."""
RETRY_S: Final = 3.0
COMPLAIN_AFTER: Final = 10

ALERT: Final = "no_relay"


class RelayNode(Protocol):
    """The part of kademlia.Node that is used here."""

    async def connect(self, peer: PeerId, addresses: list[str], *, timeout_s: float = 15.0) -> None: ...

    async def open_stream(
        self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


async def keep_places(node: RelayNode, relays: tuple[str, ...], emit: Callable[[Event], None]) -> None:
    """Hold a place at every relay; runs until cancelled."""
    async with asyncio.TaskGroup() as group:
        for relay in relays:
            group.create_task(_keep_place(node, relay, emit), name=f"place at {relay}")


async def _keep_place(node: RelayNode, relay: str, emit: Callable[[Event], None]) -> None:
    address = parse_address(relay)
    assert address.peer is not None, "site.toml refuses relays without a peer id"
    failures = 0
    while True:
        try:
            await reserve(node, address.peer, relay)
            failures = 0
        except PeerError as error:
            failures += 1
            if failures == COMPLAIN_AFTER:
                emit(raised(ALERT, f"the relay {relay} gives us no place: {error}"))
        await asyncio.sleep(RENEW_EVERY_S if failures == 0 else RETRY_S)


async def deny(_peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handler of HOP_PROTOCOL at a site that relays for nobody, in place of p2pd's own, which cannot be turned off."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            writer.write(DENIED)
            await writer.drain()
            await reader.read(1)


async def reserve(node: RelayNode, peer: PeerId, relay: str) -> None:
    """Have a place at a relay, for an hour or until our connection to it breaks. Raises PeerError."""
    await node.connect(peer, [relay])
    reader, writer = await node.open_stream(peer, HOP_PROTOCOL)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            writer.write(RESERVE)
            await writer.drain()
            length = await _read_varint(reader)
            if length > ANSWER_BYTES_MAX:
                raise PeerError(f"{relay} answers a reservation with {length} bytes")
            status = status_of(await reader.readexactly(length))
    except (TimeoutError, OSError, EOFError, ValueError) as error:
        raise PeerError(f"{relay} does not answer a reservation ({type(error).__name__})") from error
    finally:
        writer.close()
    if status != STATUS_OK:
        raise PeerError(f"{relay} refuses to relay for us (status {status})")


async def _read_varint(reader: asyncio.StreamReader) -> int:
    data = bytearray()
    while not data or data[-1] & 0x80:
        data += await reader.readexactly(1)
        if len(data) > 5:
            raise ValueError("varint too long")
    return _take_varint(bytes(data), 0)[0]


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, position after it)."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("broken varint")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return number, at


def status_of(message: bytes) -> int:
    """Field `status` of a HopMessage; 0 if it has none. Raises ValueError."""
    at = status = 0
    while at < len(message):
        key, at = _take_varint(message, at)
        if key & 7 == 0:
            value, at = _take_varint(message, at)
            status = value if key >> 3 == 5 else status
        elif key & 7 == 2:
            length, at = _take_varint(message, at)
            at += length
        else:
            raise ValueError(f"field type {key & 7}")
    if at != len(message):
        raise ValueError("cut off")
    return status
