"""Pieces without a digest on data connections: who gets them, what is refused, what decides in their place. S11.8."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.fetch import FetchClient, FetchServer, Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.wire import frames
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, Prelude, decode_prelude, encode_prelude
from dilocoxd.wire.messages import Hello, SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, End, two

BYTES = 2 * PIECE_BYTES + 5


@pytest.fixture
def payload() -> Iterator[Region]:
    fd = os.memfd_create("payload")
    os.write(fd, os.urandom(BYTES))
    yield Region(fd, 0, BYTES)
    os.close(fd)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Prelude]:
    """Preludes of all pieces that are read from now on."""
    found: list[Prelude] = []

    def note(data: bytes, *, is_sealed: bool = False) -> Prelude:
        prelude = decode_prelude(data, is_sealed=is_sealed)
        if prelude.kind is FrameKind.PIECE:
            found.append(prelude)
        return prelude

    monkeypatch.setattr("dilocoxd.swarm.streams.streams.decode_prelude", note)
    return found


class Place:
    """Where a payload goes."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("place")
        self.num_received = 0
        self.receiver = BulkReceiver(lambda peer, header: Region(self.fd, 0, BYTES), self._received)

    async def _received(self, peer: PeerId, header: SegmentHeader) -> None:
        self.num_received += 1


def header_of(digest: bytes) -> SegmentHeader:
    return replace(HEADER, segment_bytes=BYTES, piece_bytes=BYTES, segment_sha256=digest)


def of_before(end: End) -> None:
    """From now on its hellos are those of version 2.0, and nothing it has open stays."""

    def older(say: Callable[..., Hello]) -> Callable[..., Hello]:
        return lambda *arguments: replace(say(*arguments), protocol_minor=0)

    end.gate.hello, end.gate.bare_hello = older(end.gate.hello), older(end.gate.bare_hello)  # type: ignore[method-assign]
    for link in end.accepted:
        link.abort()


@pytest.mark.parametrize("is_of_before", [False, True])
async def test_pieces_of_payloads_have_digests_only_for_who_wants_them(
    tmp_path: Path, payload: Region, seen: list[Prelude], *, is_of_before: bool
) -> None:
    async with two(tmp_path) as (a, b):
        if is_of_before:
            of_before(b)
        place = Place()
        b.answer = place.receiver.serve
        data = os.pread(payload.fd, BYTES, 0)
        await BulkSender(a.gate).send_segment(b.identity.peer_id, header_of(sha256(data).digest()), payload)
        assert os.pread(place.fd, BYTES, 0) == data
        assert [prelude.is_digested for prelude in seen] == [is_of_before] * payload.num_pieces
        assert not a.node.num_asked
        os.close(place.fd)


@pytest.mark.parametrize("is_of_before", [False, True])
async def test_pieces_of_resources_have_digests_only_for_who_wants_them(
    tmp_path: Path, payload: Region, seen: list[Prelude], *, is_of_before: bool
) -> None:
    data = os.pread(payload.fd, BYTES, 0)

    async def resource(peer: PeerId, name: str) -> Served:
        return Served(payload, sha256(data).digest(), lambda: None)

    async with two(tmp_path) as (a, b):
        if is_of_before:
            of_before(a)
        b.answer = FetchServer(resource).serve
        assert await FetchClient(a.gate).fetch_bytes(b.identity.peer_id, "payload/7", bytes_max=BYTES) == data
        assert [prelude.is_digested for prelude in seen] == [is_of_before] * payload.num_pieces
        assert not a.node.num_asked


async def test_payload_that_is_not_what_its_header_says_is_refused_by_the_hash_of_the_whole(
    tmp_path: Path, payload: Region, seen: list[Prelude]
) -> None:
    async with two(tmp_path) as (a, b):
        place = Place()
        b.answer = place.receiver.serve
        with pytest.raises(Refused, match="bad_hash"):
            await BulkSender(a.gate).send_segment(b.identity.peer_id, header_of(bytes(32)), payload, attempts=1)
        assert seen
        assert not any(prelude.is_digested for prelude in seen)
        assert (place.num_received, place.receiver.counts["payloads_bad_hash"]) == (0, 1)
        os.close(place.fd)


def undigested(kind: FrameKind, data: bytes) -> bytes:
    return encode_prelude(kind, [data], is_digested=False) + data


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (undigested(FrameKind.OFFER, b"x"), "frame_version"),
        (undigested(FrameKind.PIECE, bytes(9)), "unexpected_frame"),
        (undigested(FrameKind.PIECE, bytes(9)).replace(frames.NO_DIGEST, bytes(31) + b"x"), "bad_hash"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_member_that_leaves_out_other_digests_is_refused_and_counted(
    tmp_path: Path, attack: bytes, code: str
) -> None:
    async with two(tmp_path) as (a, b):
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        stream._writer.write(attack)
        with pytest.raises(Refused, match=code):
            await stream.read(FrameKind.HOLDING)
        stream.close()
        assert b.gate.guard.bad_input() == {a.identity.peer_id: {code: 1}}


async def test_piece_without_a_digest_is_bad_input_on_a_stream_of_libp2p() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(undigested(FrameKind.PIECE, bytes(9)))
    stream = FrameStream(PeerId("a peer"), reader, None)  # type: ignore[arg-type]
    with pytest.raises(WireError) as caught:
        await stream.read(FrameKind.PIECE)
    assert caught.value.code == "frame_version"
