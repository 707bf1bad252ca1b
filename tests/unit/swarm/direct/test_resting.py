"""Ends of data connections: one that was ended while it rested costs nothing, what failed ends it. S11.5, S11.7."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import BulkReceiver
from dilocoxd.swarm.streams.fetch import FetchServer, Served
from dilocoxd.swarm.streams.guard import STRIKES_MAX
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, PROTOCOL_FETCH, FrameStream
from dilocoxd.wire.frames import PIECE_BYTES, Frame, FrameKind, encode_piece_header
from dilocoxd.wire.messages import PEER_MESSAGES, Fetch, SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, NUM_PIECES, RUN, End, two


async def offered(stream: FrameStream) -> Frame:
    await stream.write(FrameKind.OFFER, b"x" * 1000)
    frame = await stream.read(FrameKind.HOLDING)
    stream.done()
    return frame


async def test_request_on_a_connection_that_was_ended_is_sent_again_on_another(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        peer = b.identity.peer_id
        stream, _ = await a.gate.ask(peer, PROTOCOL_BULK, offered)
        stream.close()
        assert (a.plane.counts["links_opened"], a.plane.counts["links_reused"]) == (1, 1)
        b.accepted[0].abort()  # A learns of it once it has sent its request
        stream, frame = await a.gate.ask(peer, PROTOCOL_BULK, offered)
        stream.close()
        assert frame.kind is FrameKind.HOLDING
        assert (a.plane.counts["links_opened"], a.plane.counts["links_reused"]) == (2, 2)
        assert a.plane.view(peer).is_data, "its port is not given up for it"
        assert not a.node.num_asked


async def test_request_goes_to_p2pd_at_once_where_the_port_is_gone_too(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        peer = b.identity.peer_id
        b.listener.close()
        b.accepted[0].abort()
        with pytest.raises(PeerError, match="by p2pd"):
            await a.gate.ask(peer, PROTOCOL_BULK, offered)
        assert a.node.num_asked == 1
        assert not a.plane.view(peer).is_data


async def test_connection_that_breaks_after_an_answer_has_begun_is_no_stale_one(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        peer = b.identity.peer_id

        async def broken(stream: FrameStream) -> Frame:
            await offered(stream)
            b.accepted[0].abort()
            return await stream.read(FrameKind.RECEIPT)

        with pytest.raises(PeerError):
            await a.gate.ask(peer, PROTOCOL_BULK, broken)
        assert (a.plane.counts["links_opened"], a.plane.counts["links_reused"]) == (1, 1)


class Disk:
    """Where payloads go: refuses the second piece, or has the round end behind the first."""

    def __init__(self, *, is_full: bool) -> None:
        self.receiver = BulkReceiver(lambda peer, header: self.region, self._received)  # type: ignore[arg-type, return-value]
        self.region = self
        self.is_full = is_full
        self.num_written = 0
        self.length = NUM_PIECES * PIECE_BYTES
        self.num_pieces = NUM_PIECES
        self.is_on_disk = False

    async def _received(self, peer: PeerId, header: SegmentHeader) -> None:
        raise AssertionError("nothing was received whole")

    def piece_bytes(self, index: int) -> int:
        return PIECE_BYTES

    async def write_piece(self, index: int, data: bytes) -> None:
        self.num_written += 1
        if self.is_full:
            raise StoreError("no space")
        self.receiver.forget(lambda header: True)


@pytest.mark.parametrize("is_full", [True, False])
async def test_pieces_on_their_way_to_a_full_disk_or_an_old_attempt_are_no_misbehaviour(
    tmp_path: Path, *, is_full: bool
) -> None:
    async with two(tmp_path) as (a, b):
        disk = Disk(is_full=is_full)
        b.answer = disk.receiver.serve

        async def push(stream: FrameStream) -> Frame:
            await stream.write(FrameKind.OFFER, PEER_MESSAGES.encode(HEADER))
            await stream.read(FrameKind.HOLDING)
            for index in range(3):
                await stream.write(FrameKind.PIECE, encode_piece_header(index), bytes(PIECE_BYTES))
            return await stream.read(FrameKind.RECEIPT)

        async with asyncio.timeout(60):
            while disk.num_written <= STRIKES_MAX:
                with pytest.raises(PeerError):
                    await a.gate.ask(b.identity.peer_id, PROTOCOL_BULK, push)
                await asyncio.sleep(0.01)
        b.gate.guard.admit(a.identity.peer_id)


async def refusals(a: End, b: End, kind: FrameKind, request: bytes, times: int = 1) -> list[str]:
    """Codes of the answers to a request, sent so many times on one connection; "over" where that has ended."""
    found, hello = [], PEER_MESSAGES.encode(a.gate.hello())
    stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
    try:
        for number in range(times):
            if number:
                await stream.write(FrameKind.HELLO, hello)
            await stream.write(kind, request)
            try:
                await stream.read()
            except Refused as refused:
                found.append(refused.code)
    except PeerError:
        found.append("over")
    finally:
        stream.close()
    return found


async def test_connection_ends_with_a_fetch_that_was_refused(tmp_path: Path) -> None:
    """S11.5: after any failure but a refused offer both sides close; nobody is blamed for asking what is not there."""

    async def nothing(peer: PeerId, resource: str) -> Served:
        raise WireError("not_found", "no such thing")

    async with two(tmp_path) as (a, b):
        b.answer = FetchServer(nothing).serve
        wanted = PEER_MESSAGES.encode(Fetch(RUN, "payload/7", 0, 0))
        for _ in range(STRIKES_MAX + 1):
            assert await refusals(a, b, FrameKind.FETCH, wanted) == ["not_found"]
        assert await refusals(a, b, FrameKind.FETCH, wanted, times=2) == ["not_found", "over"]
        b.gate.guard.admit(a.identity.peer_id)


async def test_resource_that_cannot_be_read_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    """What the system said ended the port, and the daemon, as often as a member asked for it."""

    async def unreadable(peer: PeerId, resource: str) -> Served:
        fd = os.open(tmp_path, os.O_RDONLY)
        return Served(Region(fd, 0, 5, is_on_disk=True), bytes(32), lambda: os.close(fd))

    async with two(tmp_path) as (a, b):
        b.answer = FetchServer(unreadable).serve
        for _ in range(2):
            stream = await a.gate.open(b.identity.peer_id, PROTOCOL_FETCH)
            await stream.write(FrameKind.FETCH, PEER_MESSAGES.encode(Fetch(RUN, "payload/7", 0, 0)))
            await stream.read(FrameKind.FOUND)
            with pytest.raises(Refused, match="store"):
                await stream.read(FrameKind.PIECE)
            stream.close()
        assert a.node.num_asked == 0, "the port is there"


async def test_offer_that_is_no_whole_segment_is_bad_input(tmp_path: Path) -> None:
    """S5.2, S8.1: it is refused, counted, and the end of the connection."""

    def unwanted(peer: PeerId, header: SegmentHeader) -> Region:
        raise WireError("not_wanted", "not of this round")

    async with two(tmp_path) as (a, b):
        b.answer = BulkReceiver(unwanted, Disk(is_full=True)._received).serve
        half = PEER_MESSAGES.encode(replace(HEADER, offset=PIECE_BYTES))
        for _ in range(STRIKES_MAX - 1):
            assert await refusals(a, b, FrameKind.OFFER, half) == ["malformed"]
        b.gate.guard.admit(a.identity.peer_id)
        assert await refusals(a, b, FrameKind.OFFER, half, times=2) == ["malformed", "over"]
        with pytest.raises(WireError, match="banned"):
            b.gate.guard.admit(a.identity.peer_id)
