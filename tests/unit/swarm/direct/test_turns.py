"""Exchanges behind each other on one data connection: written without waiting, answered in order, apart in failure."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import LANES_PER_PEER, RECEIPT_COMPLETE, BulkSender
from dilocoxd.swarm.streams.pieces import PieceSet, Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.swarm.streams.throttle import REPEATS_MAX
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, Hello, SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, End, two

NUM_PIECES = 2
PATIENCE_S = 60.0
"""Only what hangs takes as long."""


class Receiver:
    """Answers exchanges when `answers` has a turn for each, with what `refusal` says of the first segment."""

    def __init__(self, end: End) -> None:
        self.begun: list[int] = []
        self.answers = asyncio.Semaphore(0)
        self.refusal: WireError | None = None
        end.answer = self._serve

    async def _serve(self, stream: FrameStream, hello: Hello) -> None:
        header = PEER_MESSAGES.decode((await stream.read(FrameKind.OFFER)).message)
        assert isinstance(header, SegmentHeader)
        self.begun.append(header.segment)
        for _ in range(NUM_PIECES):
            await stream.read(FrameKind.PIECE)
        await stream.read(FrameKind.FINISHED)
        async with asyncio.timeout(PATIENCE_S):
            await self.answers.acquire()
        if self.refusal is not None and not header.segment:
            raise self.refusal
        await stream.write(FrameKind.HOLDING, PieceSet(NUM_PIECES).to_bytes())
        await stream.write(FrameKind.RECEIPT, RECEIPT_COMPLETE)


@pytest.fixture
def payload() -> Iterator[Region]:
    fd = os.memfd_create("payload")
    os.write(fd, bytes(NUM_PIECES * PIECE_BYTES))
    yield Region(fd, 0, NUM_PIECES * PIECE_BYTES)
    os.close(fd)


def header_of(segment: int, payload: Region) -> SegmentHeader:
    digest = sha256(bytes(payload.length)).digest()
    return replace(
        HEADER, segment=segment, segment_bytes=payload.length, piece_bytes=payload.length, segment_sha256=digest
    )


async def until_written(sender: BulkSender, payloads: int, payload: Region) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while sender.counts["bytes_sent"] < payloads * payload.length:
            await asyncio.sleep(0.01)


async def send(sender: BulkSender, end: End, segment: int, payload: Region) -> str:
    """The code of a refusal; empty: it was taken."""
    try:
        await sender.send_segment(end.identity.peer_id, header_of(segment, payload), payload, attempts=1)
    except Refused as refused:
        return refused.code
    return ""


async def test_payloads_are_written_behind_each_other_before_any_is_answered(tmp_path: Path, payload: Region) -> None:
    async with two(tmp_path, most=1) as (a, b):
        receiver, sender = Receiver(b), BulkSender(a.gate)
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(send(sender, b, segment, payload)) for segment in range(3)]
            await until_written(sender, 3, payload)
            assert receiver.begun == [0], "the other side takes one after the other"
            for _ in range(3):
                receiver.answers.release()
        assert [task.result() for task in sent] == ["", "", ""]
        assert receiver.begun == [0, 1, 2]
        assert a.plane.counts["links_opened"] == 1
        assert a.plane.counts["links_shared"] == 2
        assert not a.node.num_asked


async def test_payload_behind_one_that_ends_its_connection_is_sent_on_another(tmp_path: Path, payload: Region) -> None:
    async with two(tmp_path, most=1) as (a, b):
        receiver, sender = Receiver(b), BulkSender(a.gate)
        receiver.refusal = WireError("bad_hash", "not what its header says")
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(send(sender, b, segment, payload)) for segment in range(2)]
            await until_written(sender, 2, payload)
            for _ in range(2):
                receiver.answers.release()
        assert [task.result() for task in sent] == ["bad_hash", ""]
        assert a.plane.counts["links_opened"] == 2
        assert a.plane.view(b.identity.peer_id).is_data, "its port is not given up for it"
        assert not a.node.num_asked


async def test_answer_to_who_has_gone_is_not_read_by_who_comes_next(tmp_path: Path, payload: Region) -> None:
    async with two(tmp_path, most=1) as (a, b):

        async def answer(stream: FrameStream, hello: Hello) -> None:
            await stream.write(FrameKind.HOLDING, (await stream.read(FrameKind.OFFER)).message)

        b.answer = answer
        first = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        await first.write(FrameKind.OFFER, b"first")
        assert first.on_written is not None
        first.on_written()
        second = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        await second.write(FrameKind.OFFER, b"second")
        (link,) = a.plane._routes[b.identity.peer_id].used
        async with asyncio.timeout(PATIENCE_S):
            while not link.is_over:  # bytes have come that nobody has asked for
                await asyncio.sleep(0.01)
        first.close()
        with pytest.raises(PeerError):
            await second.read(FrameKind.HOLDING)
        assert second.is_stale, "it is asked again on another connection"
        second.close()


async def test_who_gives_up_behind_others_leaves_them_their_answers(tmp_path: Path, payload: Region) -> None:
    async with two(tmp_path, most=1) as (a, b):
        receiver, sender = Receiver(b), BulkSender(a.gate)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(send(sender, b, 0, payload))
            await until_written(sender, 1, payload)
            second = group.create_task(send(sender, b, 1, payload))
            await until_written(sender, 2, payload)
            second.cancel()
            await asyncio.wait((second,))
            receiver.answers.release()
            assert await first == ""
            for _ in range(2):  # what was given up had been written
                receiver.answers.release()
            assert await send(sender, b, 2, payload) == ""
        assert a.plane.counts["links_opened"] == 2, "nothing follows who gave up"


class SlowStreams:
    """A p2pd that never gets a stream open; counts how many are asked for at the same time."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def open_stream(
        self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.num_asked += 1
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that")


async def test_payloads_that_are_sent_again_hold_no_more_memory_than_others(tmp_path: Path, payload: Region) -> None:
    """Those whose connection ended had left their places, and all of them went over p2pd at once."""
    payload, num_payloads = replace(payload, length=1000), LANES_PER_PEER + 3
    async with two(tmp_path, most=1) as (a, b):

        async def silent(stream: FrameStream, hello: Hello) -> None:
            await asyncio.Event().wait()

        b.answer, streams = silent, SlowStreams()
        sender, a.gate._node = BulkSender(a.gate), streams
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(send(sender, b, segment, payload)) for segment in range(num_payloads)]
            await until_written(sender, num_payloads, payload)
            route = a.plane._routes[b.identity.peer_id]
            (link,) = route.used
            route.is_open = False  # its port no longer answers
            link.abort()
            async with asyncio.timeout(PATIENCE_S):
                while streams.num_asked < LANES_PER_PEER:
                    await asyncio.sleep(0.01)
            for _ in range(100):  # whoever is not held back is there by then
                await asyncio.sleep(0)
            assert streams.num_asked == LANES_PER_PEER
            for task in sent:
                task.cancel()


async def test_who_answers_one_and_ends_each_connection_is_sent_the_rest_a_few_times_only(
    tmp_path: Path, payload: Region
) -> None:
    async with two(tmp_path, most=1) as (a, b):
        sender, payload, num_payloads = BulkSender(a.gate), replace(payload, length=1000), 4 * (REPEATS_MAX + 1)
        sent: list[asyncio.Task[str]] = []
        answered: list[FrameStream] = []

        def are_written() -> bool:
            links = a.plane._routes[b.identity.peer_id].used
            left = sum(not task.done() for task in sent)
            return sum(link.num_under_way for link in links) == left and not any(link.is_written for link in links)

        async def answer(stream: FrameStream, hello: Hello) -> None:
            if stream in answered:
                raise PeerError("it has seen enough")
            answered.append(stream)
            async with asyncio.timeout(PATIENCE_S):
                while not are_written():
                    await asyncio.sleep(0.01)
            await stream.read(FrameKind.OFFER)
            await stream.read(FrameKind.PIECE)
            await stream.read(FrameKind.FINISHED)
            await stream.write(FrameKind.HOLDING, PieceSet(1).to_bytes())
            await stream.write(FrameKind.RECEIPT, RECEIPT_COMPLETE)

        b.answer = answer
        async with asyncio.TaskGroup() as group:
            for segment in range(num_payloads):
                sent.append(group.create_task(taken_or_lost(sender, b, segment, payload)))
        assert {task.result() for task in sent} == {"taken", "lost"}
        assert sender.counts["bytes_sent"] <= (1 + REPEATS_MAX) * num_payloads * payload.length


async def taken_or_lost(sender: BulkSender, end: End, segment: int, payload: Region) -> str:
    with contextlib.suppress(PeerError):
        await sender.send_segment(end.identity.peer_id, header_of(segment, payload), payload, attempts=1)
        return "taken"
    return "lost"
