"""A frame ends within a time that its length gives; half of one is counted; messages beyond a budget wait (S3, S10)."""

import asyncio
from typing import Any

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId, RoundIndex, RunId
from dilocoxd.swarm.streams import ends, messages
from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.messages import MessageChannel
from dilocoxd.swarm.streams.room import StreamRoom
from dilocoxd.swarm.streams.streams import FrameStream, StreamGate
from dilocoxd.wire.frames import FrameKind, encode_prelude
from dilocoxd.wire.messages import PEER_MESSAGES, Hello, Leaving
from tests.unit.swarm.test_refusals import Writer

PEER = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
TICK_S = 0.02


def a_stream(**settings: Any) -> tuple[FrameStream, asyncio.StreamReader]:
    reader, writer = asyncio.StreamReader(), Writer()
    return FrameStream(PEER, reader, writer, **settings), reader  # type: ignore[arg-type]


async def test_frame_that_trickles_is_given_up_though_each_byte_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "FRAME_BYTES_PER_S_MIN", 100_000)
    stream, reader = a_stream(progress_timeout_s=10 * TICK_S)
    room = StreamRoom()
    stream.take_place(room, room.enter(PEER, "", stream.close))
    body = bytes(20_000)
    reading = asyncio.create_task(stream.read(FrameKind.MESSAGE))
    began = asyncio.get_running_loop().time()
    reader.feed_data(encode_prelude(FrameKind.MESSAGE, [body]) + b"x")
    for _ in range(3):
        await asyncio.sleep(0)
    assert room.num_bytes > 0, "half of a frame is counted"
    while not reading.done():
        reader.feed_data(b"x")
        await asyncio.sleep(TICK_S)
    with pytest.raises(PeerError, match=r"of 20000 bytes within"):
        await reading
    assert asyncio.get_running_loop().time() - began < 60.0
    assert room.num_bytes == 0
    stream.close()
    assert room.num_streams == 0


async def test_message_beyond_the_budget_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "EACH", Rate(per_s=40 * 1024.0, burst=4 * 1024.0))
    monkeypatch.setattr(messages, "BUDGET_POLL_S", 0.001)
    node: Any = None
    told: list[Any] = []

    async def note(peer: PeerId, message: Any) -> None:
        told.append(message)

    channel = MessageChannel(StreamGate(node, RunId("test-0123456789abcdef"), PeerGuard(lambda: 0.0)), note, note)
    stream, reader = a_stream()
    data = PEER_MESSAGES.encode(Leaving(RoundIndex(1), "x"))
    now = 0.0
    channel._incoming = Budget(lambda: now, each=messages.EACH)
    for _ in range(6):
        reader.feed_data(encode_prelude(FrameKind.MESSAGE, [data]) + data)
    reader.feed_eof()
    serving = asyncio.create_task(channel.serve_messages(stream, None))  # type: ignore[arg-type]
    for count in (4, 5):  # four at once, the others at their rate
        delayed = channel.counts["messages_delayed"]
        while channel.counts["messages_delayed"] < delayed + 2:
            await asyncio.sleep(0.001)
        assert len(told) == count
        now += 1.01 / 40
    with pytest.raises(PeerError, match="ended the stream"):
        await serving
    assert len(told) == 6, "nothing is lost"


async def test_data_connection_rests_whenever_it_carries_no_exchange() -> None:
    node: Any = None
    gate = StreamGate(node, RunId("test-0123456789abcdef"), PeerGuard(lambda: 0.0))
    reader, writer = asyncio.StreamReader(), Writer()
    resting: list[bool] = []
    has_begun, may_end = asyncio.Semaphore(0), asyncio.Semaphore(0)

    def look() -> bool:
        (place,) = gate.room._places
        return place.rested > 0

    async def exchange(stream: FrameStream, hello: Hello) -> None:
        resting.append(look())
        has_begun.release()
        await may_end.acquire()

    serving = asyncio.create_task(gate.serve(exchange, PEER, reader, writer, data_from="n"))  # type: ignore[arg-type]
    hello = PEER_MESSAGES.encode(gate.hello())
    for _ in range(2):
        while not (gate.room.num_streams and look()):
            await asyncio.sleep(0)
        reader.feed_data(encode_prelude(FrameKind.HELLO, [hello]) + hello)
        await has_begun.acquire()
        may_end.release()
    reader.feed_eof()
    await serving
    assert resting == [False, False]
    assert gate.room.num_streams == 0
