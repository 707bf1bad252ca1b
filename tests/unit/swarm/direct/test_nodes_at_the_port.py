"""What a node's certificate is good for at a data port: sending payloads, for its hour. I12.3, I12.4, I12.6, S11.11."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from dilocoxd.errors import PeerError
from dilocoxd.swarm.direct import listener
from dilocoxd.swarm.direct.certificates import new_key
from dilocoxd.swarm.direct.links import DataLink, open_link
from dilocoxd.swarm.direct.nodes import NodeCredentials, certify, life_left_s, public_key_of
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, PROTOCOL_FETCH, FrameStream
from dilocoxd.wire.frames import Frame, FrameKind
from tests.unit.swarm.direct.ends import End, two
from tests.unit.swarm.test_node_certificates import UNREADABLE, Maker

WAIT_S = 60.0
AT_ONCE_S = 0.05


def certified(identity: Identity, key: ec.EllipticCurvePrivateKey) -> bytes:
    return certify(identity, public_key_of(key))


@contextlib.asynccontextmanager
async def node_at(
    a: End, b: End, protocol: str, make: Maker = certified
) -> AsyncIterator[tuple[DataLink, FrameStream]]:
    """A connection of a node of `a` to `b`, behind its handshake."""
    key = new_key()
    credentials = NodeCredentials(key, make(a.identity, key))
    anchor = credentials.anchor(b.identity.peer_id, b.identity.public_key_der)
    context = credentials.client_context((anchor,), protocol)
    link = await open_link("127.0.0.1", b.listener.port, context, timeout_s=WAIT_S)
    try:
        yield link, FrameStream(b.identity.peer_id, link.channel, link.channel)
    finally:
        link.abort()


async def welcome(stream: FrameStream) -> Frame:
    return await stream.read(FrameKind.HELLO, timeout_s=WAIT_S)


async def test_node_may_send_payloads_and_fetches_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        async with node_at(a, b, PROTOCOL_BULK) as (_, stream):
            assert (await welcome(stream)).kind is FrameKind.HELLO
        async with node_at(a, b, PROTOCOL_FETCH) as (_, stream):
            with pytest.raises(PeerError):
                await welcome(stream)
        assert b.listener.counts["handshakes_failed"] == 1


async def test_certificate_that_nobody_can_read_ends_no_port(tmp_path: Path) -> None:
    """What reading it raised ended the port of whoever was called, and so its daemon."""
    async with two(tmp_path) as (a, b):
        for make in UNREADABLE:
            async with node_at(a, b, PROTOCOL_BULK, make) as (_, stream):
                with pytest.raises(PeerError, match="bad_handshake"):
                    await welcome(stream)
        assert b.listener.counts["handshakes_failed"] == len(UNREADABLE)
        async with node_at(a, b, PROTOCOL_BULK) as (_, stream):
            assert (await welcome(stream)).kind is FrameKind.HELLO


async def test_connection_of_a_node_ends_with_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who stole its key for an hour would be let in for as long as it likes."""
    monkeypatch.setattr(
        listener, "life_left_s", lambda certificate: None if life_left_s(certificate) is None else AT_ONCE_S
    )
    async with two(tmp_path) as (a, b):
        me, of_daemon = a.identity.peer_id, b.listener.links(a.identity.peer_id)
        async with node_at(a, b, PROTOCOL_BULK), asyncio.timeout(WAIT_S):
            while b.listener.counts["handshakes_done"] < len(of_daemon) + 1 or b.listener.links(me) != of_daemon:
                await asyncio.sleep(0.01)
        assert of_daemon, "what its daemon opened stays"


async def test_nodes_of_a_site_that_is_evicted_are_out_with_it(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        async with node_at(a, b, PROTOCOL_BULK) as (link, stream):
            await welcome(stream)
            b.plane.drop(a.identity.peer_id)
            async with asyncio.timeout(WAIT_S):
                while not link.is_over:
                    await asyncio.sleep(0.01)
        with pytest.raises(PeerError):
            async with node_at(a, b, PROTOCOL_BULK) as (_, stream):
                await welcome(stream)
