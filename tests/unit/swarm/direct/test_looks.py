"""What the kernel says of connections reaches who decides; a closed one says nothing, whichever loop runs it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.direct.kernel import ask, facts_of
from dilocoxd.swarm.direct.looks import HostLooks, SignsOfLife
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, encode_prelude
from dilocoxd.wire.messages import PEER_MESSAGES, Hello
from tests.unit.swarm.direct.ends import End, two
from tests.unit.swarm.direct.test_nodes_at_the_port import node_at, welcome

MakeLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@contextlib.asynccontextmanager
async def looked_at(folder: Path) -> AsyncIterator[tuple[End, PeerId, HostLooks, list[HostsHeard]]]:
    """(A, B's id, looks of A's that tell into the list, the list); B answers."""
    told: list[HostsHeard] = []
    async with two(folder) as (a, b):
        yield a, b.identity.peer_id, HostLooks(told.append), told


@LOOPS
def test_host_that_answers_is_looked_at_and_nobody_is_told(loop: MakeLoop, tmp_path: Path) -> None:
    async def run() -> None:
        async with looked_at(tmp_path) as (a, b, looks, told):
            links = a.plane._links()
            assert [link.sock for link in links[b]], "the one that rests"
            facts = facts_of(links[b][0].sock)
            assert facts is not None and 0 < facts.link.round_trip_s < 1.0 and facts.link.num_repeats == 0
            assert 0 <= facts.link.heard_s < 60
            assert looks.look(links, Monotonic(0.0))
            assert not told

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_closed_connection_says_nothing(loop: MakeLoop, tmp_path: Path) -> None:
    async def run() -> None:
        async with looked_at(tmp_path) as (a, b, looks, told):
            links = a.plane._links()
            for link in links[b]:
                ask(link.sock)
                link.abort()
            async with asyncio.timeout(20):
                while any(facts_of(link.sock) for link in links[b]):
                    await asyncio.sleep(0.01)
            for link in links[b]:
                ask(link.sock)
            assert not looks.look(links, Monotonic(0.0))
            assert not told

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def piece_due(stream: FrameStream, hello: Hello) -> None:
    await stream.read(FrameKind.PIECE)


async def heard(signs: SignsOfLife, end: End, peer: PeerId) -> None:
    """Return with the first sign of life of `peer`."""
    async with asyncio.timeout(60):
        while signs.look(end.plane._links()) != {peer}:
            await asyncio.sleep(0.01)


async def test_bytes_on_a_connection_of_the_peer_itself_are_a_sign_of_life(tmp_path: Path) -> None:
    """D11.1: those of half a frame are, too; a connection that has brought none since the look before is not."""
    async with two(tmp_path) as (a, b):
        me, signs, b.answer = a.identity.peer_id, SignsOfLife(), piece_due
        async with asyncio.timeout(60):
            while not b.listener.links(me):
                await asyncio.sleep(0.01)
        assert signs.look(b.plane._links()) == frozenset(), "what it brought before the first look is of no known time"
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        stream._writer.write(encode_prelude(FrameKind.PIECE, (bytes(PIECE_BYTES),)))
        await heard(signs, b, me)
        stream._writer.write(bytes(PIECE_BYTES // 2))
        await heard(signs, b, me)
        async with asyncio.timeout(60):
            while b.listener.links(me)[0].channel.num_heard < PIECE_BYTES // 2:
                await asyncio.sleep(0.01)
        signs.look(b.plane._links())
        assert signs.look(b.plane._links()) == frozenset(), "nothing has come since"
        stream.close()


async def test_bytes_of_a_node_say_nothing_of_its_peer(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        me, signs = a.identity.peer_id, SignsOfLife()
        async with node_at(a, b, PROTOCOL_BULK) as (_, stream):
            await welcome(stream)
            (link,) = (link for link in b.listener.links(me) if link.is_of_node)
            signs.look(b.plane._links())
            before = link.channel.num_heard
            await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(a.gate.hello()))
            async with asyncio.timeout(60):
                while link.channel.num_heard == before:
                    await asyncio.sleep(0.01)
            assert signs.look(b.plane._links()) == frozenset()


async def test_who_listens_is_told_while_bytes_come(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        told: asyncio.Queue[frozenset[PeerId]] = asyncio.Queue()
        looks, b.answer = HostLooks(lambda heard: None, told.put_nowait), piece_due
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        stream._writer.write(encode_prelude(FrameKind.PIECE, (bytes(PIECE_BYTES),)))
        looking = asyncio.create_task(looks.run(b.plane._links))
        async with asyncio.timeout(60):
            while told.empty():
                stream._writer.write(bytes(64))
                await asyncio.sleep(0.02)
        assert await told.get() == {a.identity.peer_id}
        looking.cancel()
        stream.close()
