"""A place has one payload at a time: what was compared with its hash is not written by another one's lanes (S8.9)."""

import dataclasses
import hashlib
import os
from pathlib import Path

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, encode_piece_header
from dilocoxd.wire.messages import PEER_MESSAGES, SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, two


async def test_two_payloads_for_one_place_are_not_written_at_once(tmp_path: Path) -> None:
    """An owner that offers two results for one segment could else spoil the one that was found right."""
    taken, source = os.memfd_create("taken"), os.memfd_create("source")
    arrived: list[SegmentHeader] = []

    async def received(peer: PeerId, header: SegmentHeader) -> None:
        arrived.append(header)

    payload = os.urandom(PIECE_BYTES)
    os.write(source, payload)
    header = dataclasses.replace(HEADER, segment_bytes=PIECE_BYTES, piece_bytes=PIECE_BYTES)
    right = dataclasses.replace(header, segment_sha256=hashlib.sha256(payload).digest())
    receiver = BulkReceiver(lambda peer, header: Region(taken, 0, PIECE_BYTES), received)
    async with two(tmp_path) as (a, b):
        b.answer = receiver.serve
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        await stream.write(FrameKind.OFFER, PEER_MESSAGES.encode(header))
        await stream.read(FrameKind.HOLDING)
        sender = BulkSender(a.gate)
        with pytest.raises(Refused, match="busy"):
            await sender.send_segment(b.identity.peer_id, right, Region(source, 0, PIECE_BYTES), attempts=1)
        receiver.forget(lambda header: header.segment_sha256 == bytes(32))
        await sender.send_segment(b.identity.peer_id, right, Region(source, 0, PIECE_BYTES), attempts=1)
        await stream.write(FrameKind.PIECE, encode_piece_header(0), bytes(PIECE_BYTES))
        with pytest.raises(Refused, match="stale"):
            await stream.read(FrameKind.RECEIPT)
        stream.close()
    assert arrived == [right] and os.pread(taken, PIECE_BYTES, 0) == payload
    os.close(taken)
    os.close(source)
