"""How long half of a frame is waited for on a data connection, whose reader wakes once all is there. S3, S10."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.swarm.direct.channel import BLOCK_BYTES
from dilocoxd.swarm.streams import ends
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.wire.frames import FrameKind, encode
from dilocoxd.wire.messages import Hello
from tests.unit.swarm.direct.ends import End, two

BODY = bytes(20_000)
TICK_S = 0.02
LONG_S = 60.0
"""Nothing that is tested may take as long."""


class Reader:
    """Reads one OFFER of each exchange, with so much patience; `failures` has what became of it."""

    def __init__(self, end: End, progress_timeout_s: float) -> None:
        self.failures: list[str] = []
        self.num_held = 0
        end.answer, self._end = self._serve, end
        self._progress_timeout_s = progress_timeout_s

    async def _serve(self, stream: FrameStream, hello: Hello) -> None:
        stream._progress_timeout_s = self._progress_timeout_s
        try:
            await stream.read(FrameKind.OFFER, timeout_s=LONG_S)
        except PeerError as error:
            self.failures.append(str(error))
            raise
        finally:
            self.num_held = self._end.gate.room.num_bytes


async def sent_in_parts(a: End, b: End, first: bytes, every_tick: bytes) -> None:
    """`first`, then so much every tick until the other side ends it."""
    stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
    try:
        stream._writer.write(first)
        async with asyncio.timeout(LONG_S):
            while not stream._writer.is_ended:  # type: ignore[attr-defined]
                if every_tick:
                    stream._writer.write(every_tick)
                await asyncio.sleep(TICK_S)
    except OSError:
        pass
    finally:
        stream.close()


@pytest.mark.parametrize("length", [1, 41, 10_000])
async def test_who_falls_silent_within_a_frame_is_given_up(tmp_path: Path, length: int) -> None:
    async with two(tmp_path) as (a, b):
        reader = Reader(b, 10 * TICK_S)
        await sent_in_parts(a, b, encode(FrameKind.OFFER, BODY)[:length], b"")
        (failure,) = reader.failures
        assert f"sent {length if length < 40 else length - 40} of" in failure
        assert reader.num_held == 0


@pytest.mark.parametrize("length", [1, 41])
async def test_frame_that_trickles_is_given_up_though_each_byte_is_progress(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "DATA_BYTES_PER_S_MIN", 100_000)
    async with two(tmp_path) as (a, b):
        reader = Reader(b, 10 * TICK_S)
        await sent_in_parts(a, b, encode(FrameKind.OFFER, BODY)[:length], b"x")
        (failure,) = reader.failures
        assert " of 20000 bytes within" in failure or " of 40 bytes within" in failure
        assert reader.num_held == 0


async def test_half_of_a_frame_is_counted_while_it_is_waited_for(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        Reader(b, LONG_S)
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        stream._writer.write(encode(FrameKind.OFFER, BODY)[:100])
        async with asyncio.timeout(LONG_S):
            while b.gate.room.num_bytes < len(BODY):
                await asyncio.sleep(TICK_S)
        stream._writer.write(encode(FrameKind.OFFER, BODY)[100:])
        async with asyncio.timeout(LONG_S):
            while b.gate.room.num_bytes:
                await asyncio.sleep(TICK_S)
        stream.close()


async def test_frame_for_whose_second_half_there_is_no_room_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        b.gate.room._limits = replace(b.gate.room._limits, bytes_peer=2 * BLOCK_BYTES)
        b.answer = read_piece
        for length in (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1):
            stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
            stream._writer.write(encode(FrameKind.PIECE, bytes(length)))
            if length <= 2 * BLOCK_BYTES:
                await stream.read(FrameKind.HOLDING)
                stream.done()
            else:
                with pytest.raises(Refused, match="too_many_bytes"):
                    await stream.read(FrameKind.HOLDING)
            stream.close()
        assert not b.gate.room.num_bytes


async def read_piece(stream: FrameStream, hello: Hello) -> None:
    await stream.read(FrameKind.PIECE)
    await stream.write(FrameKind.HOLDING, b"")
