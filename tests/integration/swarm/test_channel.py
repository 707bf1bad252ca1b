"""Messages between peers: order, answers, queues with an end, and a hostile client that gets nowhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.streams import messages as channel_module
from dilocoxd.swarm.streams.guard import STRIKES_MAX
from dilocoxd.swarm.streams.messages import MessageChannel
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_CALL, PROTOCOL_MESSAGE, FrameStream
from dilocoxd.wire.frames import MAGIC, FrameKind, encode
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, Committed, Hello, Leaving, Records
from tests.integration.swarm.sites import Site, sites, until

pytestmark = pytest.mark.processes


class Talker:
    """A site with a message channel; answers a call with the message itself."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.heard: list[tuple[PeerId, Any]] = []
        self.channel = MessageChannel(site.gate, self.on_message, self.on_call)
        self.is_stopped = asyncio.Event()
        self.may_hear = asyncio.Event()
        self.may_hear.set()

    async def on_message(self, peer: PeerId, message: Any) -> None:
        await self.may_hear.wait()
        self.heard.append((peer, message))

    async def on_call(self, peer: PeerId, message: Any) -> Any:
        if isinstance(message, Leaving):
            raise WireError("not_wanted", "we never answer that")
        return message


@contextlib.asynccontextmanager
async def talkers(folder: Path, number: int = 2) -> AsyncIterator[list[Talker]]:
    async with sites(folder, number) as started, asyncio.TaskGroup() as group:
        found = [Talker(site) for site in started]
        for talker in found:
            await talker.site.serve(PROTOCOL_MESSAGE, talker.channel.serve_messages)
            await talker.site.serve(PROTOCOL_CALL, talker.channel.serve_call)
            group.create_task(talker.channel.run(talker.is_stopped))
            await found[0].site.meet(talker.site) if talker is not found[0] else None
        try:
            yield found
        finally:
            for talker in found:
                talker.is_stopped.set()


def note(number: int) -> Committed:
    return Committed(number, bytes(32))  # type: ignore[arg-type]


async def test_messages_arrive_in_order_and_calls_are_answered(tmp_path: Path) -> None:
    async with talkers(tmp_path) as (a, b):
        for number in range(200):
            a.channel.send(b.site.peer_id, note(number))
        assert await a.channel.call(b.site.peer_id, note(7)) == note(7)
        await until(lambda: len(b.heard) == 200, "all messages")
        assert b.heard == [(a.site.peer_id, note(number)) for number in range(200)]
        with pytest.raises(Refused, match="we never answer that"):
            await a.channel.call(b.site.peer_id, Leaving(0, "x"))  # type: ignore[arg-type]


async def test_queue_of_a_peer_that_takes_nothing_drops_the_oldest(tmp_path: Path) -> None:
    async with talkers(tmp_path) as (a, _):
        nobody = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
        for number in range(channel_module.QUEUE_MESSAGES_MAX + 50):
            a.channel.send(nobody, note(number))
        assert a.channel.counts["messages_dropped_full"] == 50
        await until(lambda: a.channel.last_error(nobody) != "", "the failure is known")
        a.channel.forget(nobody)
        assert a.channel.last_error(nobody) == ""


async def test_slow_listener_stalls_its_own_sender_only(tmp_path: Path) -> None:
    async with talkers(tmp_path, 3) as (a, slow, quick):
        slow.may_hear.clear()
        for number in range(50):
            a.channel.send(slow.site.peer_id, note(number))
            a.channel.send(quick.site.peer_id, note(number))
        await until(lambda: len(quick.heard) == 50, "the quick one has heard all")
        assert slow.heard == []
        slow.may_hear.set()
        await until(lambda: len(slow.heard) == 50, "the slow one too, in the end")


async def test_messages_flow_again_after_the_receiver_was_reborn(tmp_path: Path) -> None:
    async with talkers(tmp_path) as (a, b):
        a.channel.send(b.site.peer_id, note(0))
        await until(lambda: len(b.heard) == 1, "first message")
        await b.site.node.start()
        await b.site.meet(a.site)

        def is_heard() -> bool:
            a.channel.send(b.site.peer_id, note(1))
            return (a.site.peer_id, note(1)) in b.heard

        await until(is_heard, "a message after the restart")


async def raw_stream(site: Site, other: Site, protocol: str, *chunks: bytes, is_closed: bool = False) -> bytes:
    """Payload of the frame with which the other side answers these bytes."""
    reader, writer = await site.node.open_stream(other.peer_id, protocol)
    stream = FrameStream(other.peer_id, reader, writer)
    try:
        writer.write(b"".join(chunks))
        await writer.drain()
        return b"" if is_closed else (await stream.read(FrameKind.REFUSED)).payload
    finally:
        stream.close()


def hello_of(site: Site) -> bytes:
    return encode(FrameKind.HELLO, PEER_MESSAGES.encode(site.gate.hello()))


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" + bytes(40), "frame_magic"),
        (MAGIC + b"\x01\x01" + b"\xff\xff\xff\xff" + bytes(32), "too_large"),
        (MAGIC + b"\x01\xee" + bytes(36), "frame_kind"),
        (MAGIC + b"\x07\x01" + bytes(36), "frame_version"),
        (encode(FrameKind.MESSAGE, b"abc")[:-1] + b"d", "bad_hash"),
        (encode(FrameKind.MESSAGE, b"\xc1garbage"), "malformed"),
        (encode(FrameKind.MESSAGE, msgpack.packb([998])), "unknown_message"),
        (encode(FrameKind.PIECE, b"12345678"), "unexpected_frame"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_hostile_bytes_end_only_their_own_stream(tmp_path: Path, attack: bytes, code: str) -> None:
    async with talkers(tmp_path) as (a, b):
        answer = await raw_stream(b.site, a.site, PROTOCOL_MESSAGE, hello_of(b.site), attack)
        assert code.encode() in answer
        assert a.site.guard.bad_input() == {b.site.peer_id: {code: 1}}
        b.channel.send(a.site.peer_id, note(3))
        await until(lambda: a.heard == [(b.site.peer_id, note(3))], "honest messages are still heard")


@pytest.mark.parametrize("num_bytes", [1, 39, 41, -1])
async def test_cut_frame_is_nobodys_fault_and_unknown_optional_message_is_ignored(
    tmp_path: Path, num_bytes: int
) -> None:
    """Its sender was killed, or the link broke (V6): long links of 1% loss cut a piece now and then."""
    async with talkers(tmp_path) as (a, b):
        cut = encode(FrameKind.MESSAGE, PEER_MESSAGES.encode(note(1)))[:num_bytes]
        ends = a.site.gate.room.num_streams
        await raw_stream(b.site, a.site, PROTOCOL_MESSAGE, hello_of(b.site), cut, is_closed=True)
        await until(lambda: a.site.gate.room.num_streams == ends, "the end of the stream")
        b.channel.send(a.site.peer_id, Records((), False))
        await until(lambda: len(a.heard) == 1, "next message")
        assert a.site.guard.bad_input() == {}


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (Hello(PROTOCOL_MAJOR, 0, "other-0123456789abcdef", 0, b"", b"", 0), b"wrong_run"),
        (Hello(PROTOCOL_MAJOR + 1, 0, "test-0123456789abcdef", 0, b"", b"", 0), b"wrong_protocol"),
        (Hello(PROTOCOL_MAJOR, 0, "", 0, b"", b"", 0), b"wrong_run"),
    ],
)
async def test_stranger_is_told_why_it_is_refused(tmp_path: Path, hello: Hello, code: bytes) -> None:
    async with talkers(tmp_path) as (a, b):
        frame = encode(FrameKind.HELLO, PEER_MESSAGES.encode(hello))
        assert code in await raw_stream(b.site, a.site, PROTOCOL_MESSAGE, frame)
        assert a.heard == []


async def test_allow_list_is_asked_with_the_authenticated_id(tmp_path: Path) -> None:
    async with talkers(tmp_path, 3) as (a, b, c):
        a.site.guard.allowed = frozenset({b.site.peer_id})
        await c.site.meet(a.site)
        assert await b.channel.call(a.site.peer_id, note(1)) == note(1)
        with pytest.raises(Refused, match="not_allowed"):
            await c.channel.call(a.site.peer_id, note(1))


async def test_peer_that_keeps_sending_garbage_is_banned_for_a_while(tmp_path: Path) -> None:
    async with talkers(tmp_path) as (a, b):
        a.site.guard._clock = lambda: 0.0  # so many within a minute, on any machine
        for _ in range(STRIKES_MAX):
            await raw_stream(b.site, a.site, PROTOCOL_MESSAGE, bytes(40))
        with pytest.raises(PeerError, match="banned"):
            await b.channel.call(a.site.peer_id, note(1))


async def test_stream_that_says_nothing_is_closed_in_time(tmp_path: Path) -> None:
    async with talkers(tmp_path) as (a, b):
        a.site.gate.progress_timeout_s = 0.5
        reader, writer = await b.site.node.open_stream(a.site.peer_id, PROTOCOL_CALL)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_joiner_without_a_run_serves_nobody(tmp_path: Path) -> None:
    async with talkers(tmp_path) as (a, b):
        b.site.gate.run_id = None
        with pytest.raises(Refused, match="not_ready"):
            await a.channel.call(b.site.peer_id, note(1))
        b.site.gate.run_id = RunId("elsewhere-0123456789abcdef")
        with pytest.raises(Refused, match="wrong_run: this peer is in run elsewhere"):
            await a.channel.call(b.site.peer_id, note(1))
