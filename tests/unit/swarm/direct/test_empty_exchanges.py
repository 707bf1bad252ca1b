"""A member that repeats what is not wanted, or is here already, waits for its turn; who brings some does not. S10"""

import asyncio
import dataclasses
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams import budget
from dilocoxd.swarm.streams.budget import Rate
from dilocoxd.swarm.streams.bulk import AlreadyHeld, BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, encode_piece_header
from dilocoxd.wire.messages import PEER_MESSAGES, SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, End, two

BURST = 20
PER_S = 8.0
WANTED, UNWANTED, HELD = range(3)
LENGTH = 1000
NUM_PAYLOADS = 4 * BURST


class Taker:
    """Wants the payloads of attempt WANTED; the others it does not, or has."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("taken")
        os.ftruncate(self.fd, NUM_PAYLOADS * LENGTH + 2 * PIECE_BYTES)
        self.delayed: list[PeerId] = []
        self.receiver = BulkReceiver(self._accept, self._received)
        self.receiver.on_delayed = self.delayed.append

    def _accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        if header.attempt == HELD:
            raise AlreadyHeld
        if header.attempt == UNWANTED:
            raise WireError("not_wanted", "not this one")
        return Region(self.fd, header.segment * LENGTH, header.segment_bytes)

    async def _received(self, peer: PeerId, header: SegmentHeader) -> None:
        return


def offer(attempt: int, segment: int = 0, data: bytes = bytes(LENGTH)) -> SegmentHeader:
    """Of this payload."""
    digest = hashlib.sha256(data).digest()
    return dataclasses.replace(
        HEADER, attempt=attempt, segment=segment, segment_bytes=len(data), piece_bytes=len(data), segment_sha256=digest
    )


async def repeat(a: End, b: End, header: SegmentHeader) -> None:
    """An exchange that brings nothing."""
    stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
    await stream.write(FrameKind.OFFER, PEER_MESSAGES.encode(header))
    await stream.write(FrameKind.FINISHED)
    if (await stream.read(FrameKind.HOLDING, FrameKind.REFUSED)).kind is FrameKind.HOLDING:
        await stream.read(FrameKind.RECEIPT)
    stream.done()
    stream.close()


@asynccontextmanager
async def taking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[End, End, Taker]]:
    monkeypatch.setattr(budget, "EMPTY_EACH", Rate(PER_S, BURST))
    taker = Taker()
    async with two(folder) as (a, b):
        b.answer = taker.receiver.serve
        yield a, b, taker
    os.close(taker.fd)


@pytest.mark.parametrize("attempt", [UNWANTED, HELD])
async def test_who_repeats_what_brings_nothing_waits_and_is_not_banned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    async with taking(tmp_path, monkeypatch) as (a, b, taker):
        begun = time.monotonic()
        for _ in range(BURST):
            await repeat(a, b, offer(attempt))
        assert not taker.delayed, "an honest one gets there too"
        more = 1 + int(PER_S * (time.monotonic() - begun)) + 8
        for _ in range(more):
            await repeat(a, b, offer(attempt))
        took_s = time.monotonic() - begun
        assert taker.delayed == [a.identity.peer_id] * len(taker.delayed) and taker.delayed
        assert took_s >= (more - 2) / PER_S, "beyond the burst they come at their rate"
        assert not b.gate.guard.bad_input()


async def test_small_payloads_that_are_wanted_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with taking(tmp_path, monkeypatch) as (a, b, taker):
        source = Region(taker.fd, 0, LENGTH)
        for segment in range(NUM_PAYLOADS):
            await BulkSender(a.gate).send_segment(b.identity.peer_id, offer(WANTED, segment), source)
        for _ in range(2):  # a new attempt, and another one
            for segment in range(NUM_PAYLOADS):
                await repeat(a, b, offer(HELD, segment))
        assert not taker.delayed


async def test_piece_that_is_here_already_is_not_sent_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one exchange, which has brought a piece and needs another one."""
    data = bytes(2 * PIECE_BYTES)
    async with taking(tmp_path, monkeypatch) as (a, b, taker):
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        await stream.write(FrameKind.OFFER, PEER_MESSAGES.encode(offer(WANTED, 0, data)))
        await stream.read(FrameKind.HOLDING)
        number = 0
        while not taker.delayed:
            await stream.write(FrameKind.PIECE, encode_piece_header(0), data[:PIECE_BYTES])
            number += 1
            assert number < 100 * BURST, "nothing slows it"
            await asyncio.sleep(0)
        assert taker.receiver.counts["pieces_duplicate"] > 4 * BURST
        await stream.write(FrameKind.PIECE, encode_piece_header(1), data[PIECE_BYTES:])
        await stream.write(FrameKind.FINISHED)
        assert (await stream.read(FrameKind.RECEIPT)).payload == b"\0", "all that is wanted is taken"
        stream.done()
        stream.close()
