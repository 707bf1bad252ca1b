"""A refused stream stays open until its opener has closed, within limits: the refusal must arrive."""

import asyncio
from typing import Any

import pytest

from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.streams import streams
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.streams import FrameStream, StreamGate
from dilocoxd.wire.messages import Hello

STRANGER = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")


class Writer:
    """What the responder writes; knows whether it closed."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        return

    def close(self) -> None:
        self.is_closed = True


async def never(stream: FrameStream, hello: Hello) -> None:
    raise AssertionError("a stranger was let in")


class Knock:
    """A stream of a stranger, open until `reader` is fed its end."""

    def __init__(self, gate: StreamGate) -> None:
        self.reader, self.writer = asyncio.StreamReader(), Writer()
        writer: Any = self.writer
        self.task = asyncio.create_task(gate.serve(never, STRANGER, self.reader, writer))

    async def is_refused(self) -> bool:
        for _ in range(20):
            await asyncio.sleep(0)
        return b"not_allowed" in self.writer.data


@pytest.fixture
def gate() -> StreamGate:
    node: Any = None
    return StreamGate(node, RunId("test-0123456789abcdef"), PeerGuard(lambda: 0.0, allowed=frozenset()))


async def test_refused_stream_is_closed_when_its_opener_has_closed(gate: StreamGate) -> None:
    knock = Knock(gate)
    for _ in range(10):
        knock.reader.feed_data(bytes(1000))
        assert await knock.is_refused() and not knock.writer.is_closed
    knock.reader.feed_eof()
    await knock.task
    assert knock.writer.is_closed


async def test_who_does_not_stop_after_a_refusal_is_cut_off(gate: StreamGate) -> None:
    knock = Knock(gate)
    knock.reader.feed_data(bytes(streams.REFUSAL_BYTES_MAX + 1))
    await knock.task
    assert knock.writer.is_closed


async def test_who_does_not_close_after_a_refusal_is_cut_off(gate: StreamGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REFUSAL_TIMEOUT_S", 0.01)
    knock = Knock(gate)
    await knock.task
    assert b"not_allowed" in knock.writer.data and knock.writer.is_closed


async def test_so_many_refused_streams_are_open_at_a_time(gate: StreamGate) -> None:
    knocks = [Knock(gate) for _ in range(streams.REFUSALS_MAX + 3)]
    assert all([await knock.is_refused() for knock in knocks])
    assert [knock.writer.is_closed for knock in knocks] == [False] * streams.REFUSALS_MAX + [True] * 3
    for knock in knocks:
        knock.reader.feed_eof()
    await asyncio.gather(*(knock.task for knock in knocks))
    late = Knock(gate)
    assert await late.is_refused() and not late.writer.is_closed
    late.reader.feed_eof()
    await late.task
