"""Who waits for an answer waits as long as what it wrote moves, and not for what trickles or stands still. S3.3.

What the kernel says is given here: a line that is thin for real would need the processor in time.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.swarm.direct import channel, kernel
from dilocoxd.swarm.direct.kernel import RECORD_BYTES, SEAL_BYTES, Moving, Written
from dilocoxd.swarm.direct.sockets import KEEP_ALIVE, tune
from dilocoxd.swarm.streams import ends
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, encode, encode_piece_header
from dilocoxd.wire.messages import Hello
from tests.unit.swarm.direct.ends import End, two
from tests.unit.swarm.direct.test_turns import Receiver, header_of, payload

__all__ = ["payload"]
SILENCE_S = 0.2
NUM_LOOKS = 60
"""In all of them together somebody waits several times as long as silence may last."""
PATIENCE_S = 60.0
"""Only what hangs takes as long."""
STEP_BYTES = 1000


class Line:
    """Of what is written, so much more is acknowledged each time that somebody asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_bytes: int) -> None:
        self._step_bytes, self.num_looks = step_bytes, 0
        monkeypatch.setattr(kernel, "MOVES_EVERY_S", SILENCE_S / 10)
        monkeypatch.setattr(Written, "_acknowledged", lambda written: self._acknowledged(written))

    def _acknowledged(self, written: Written) -> int:
        if not written.num_bytes:
            return 0
        self.num_looks += 1
        return self._step_bytes * self.num_looks


class Socket:
    """A kernel that says how much is acknowledged, or nothing."""

    def __init__(self) -> None:
        self.acknowledged, self.num_told = 0, 128

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        return (bytes(120) + self.acknowledged.to_bytes(8, "little"))[: min(buflen, self.num_told)]

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        raise NotImplementedError


def test_what_is_left_is_counted_as_tls_sends_it() -> None:
    sock = Socket()
    sock.acknowledged = 3000  # of the handshake
    written = Written(sock)
    assert written.left(0) == 0
    written.add(RECORD_BYTES + 1)
    written.add(10)
    length = RECORD_BYTES + 11 + 3 * SEAL_BYTES
    assert (written.num_bytes, written.left(length)) == (length, length)
    sock.acknowledged += 100
    assert written.left(length) == length - 100
    assert written.left(50) == 0, "of what was written first, all is there"
    sock.num_told = 120
    assert written.left(length) == 0, "a kernel that does not say has nobody wait longer"


def test_kernel_ends_what_is_idle_and_leaves_what_moves() -> None:
    """Its own time-out for data counts from a loss that is not made good, though much is acknowledged since."""
    with socket.socket() as sock:
        tune(sock)
        idle, every, count = (sock.getsockopt(socket.IPPROTO_TCP, option) for option, _ in KEEP_ALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + every * count <= 20, "a way that is gone is noticed before the next round needs it"


def test_silence_counts_from_when_something_moved_and_not_from_what_was_written_later() -> None:
    sock = Socket()
    written = Written(sock)
    written.add(10_000 - SEAL_BYTES)
    moving = Moving(written, 100.0, 1000.0)
    written.add(10_000)  # behind what is waited for
    assert moving.due(10.0, 100.0) == 110.0
    sock.acknowledged = 4000
    assert moving.due(10.0, 104.0) == moving.due(10.0, 106.0) == 114.0
    sock.acknowledged = 10_000
    assert moving.due(10.0, 107.0) == 117.0
    sock.acknowledged = 15_000
    assert moving.due(10.0, 110.0) == 117.0
    assert moving.next_look(10.0, 116.9) == 117.0
    assert moving.next_look(10.0, 117.0) is None


def test_what_moves_slower_than_a_thin_line_is_not_waited_for_longer() -> None:
    sock = Socket()
    written = Written(sock)
    written.add(10_000 - SEAL_BYTES)
    moving = Moving(written, 100.0, 1000.0)
    looks, now = 0, 100.0
    while (look := moving.next_look(10.0, now)) is not None:
        looks, now = looks + 1, look
        sock.acknowledged += 1
    assert now == pytest.approx(120.0)
    assert looks >= 20


@pytest.mark.parametrize("what", ["moves", "stands still", "trickles"])
async def test_receipt_is_waited_for_as_long_as_the_payload_moves(
    tmp_path: Path, payload: Region, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with two(tmp_path, most=1) as (a, b):
        receiver, sender = Receiver(b), BulkSender(a.gate)
        a.plane.progress_timeout_s = a.gate.progress_timeout_s = SILENCE_S
        if what == "trickles":
            monkeypatch.setattr(ends, "DATA_BYTES_PER_S_MIN", payload.length / SILENCE_S)
        line = Line(monkeypatch, 0 if what == "stands still" else STEP_BYTES)
        sending = asyncio.create_task(
            sender.send_segment(b.identity.peer_id, header_of(0, payload), payload, attempts=1)
        )
        if what == "moves":
            await until(lambda: line.num_looks >= NUM_LOOKS or sending.done())
            receiver.answers.release()
            await sending
            assert a.plane.view(b.identity.peer_id).is_data, "a thin line is no reason to go another way"
        else:
            with pytest.raises(PeerError, match="nothing within"):
                async with asyncio.timeout(PATIENCE_S):
                    await sending


@pytest.mark.parametrize("moves", [True, False])
async def test_what_is_written_waits_for_room_as_long_as_what_is_before_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    may_read = asyncio.Event()

    async def read_all(stream: FrameStream, hello: Hello) -> None:
        await may_read.wait()
        while (await stream.read(FrameKind.PIECE, FrameKind.FINISHED)).kind is FrameKind.PIECE:
            pass
        await stream.write(FrameKind.RECEIPT, b"\0")

    async with two(tmp_path, most=1) as (a, b):
        b.answer = read_all
        a.plane.progress_timeout_s = SILENCE_S
        line = Line(monkeypatch, STEP_BYTES if moves else 0)
        writing = asyncio.create_task(written_whole(a, b))
        if moves:
            await until(lambda: line.num_looks >= NUM_LOOKS or writing.done())
            may_read.set()
            await writing
        else:
            with pytest.raises(PeerError, match="took nothing for"):
                async with asyncio.timeout(PATIENCE_S):
                    await writing
            may_read.set()


async def written_whole(a: End, b: End) -> None:
    """More than kernels hold between two sockets."""
    stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
    try:
        for index in range(64):
            await stream.write(FrameKind.PIECE, encode_piece_header(index), bytes(PIECE_BYTES))
        await stream.write(FrameKind.FINISHED)
        await stream.read(FrameKind.RECEIPT)
        stream.done()
    finally:
        stream.close()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("comes", [True, False])
async def test_half_of_a_record_that_comes_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """A reader gets records of TLS, of 16 KiB: on a thin line the next one may be on its way for longer than that."""
    num_asked, failures = 0, list[str]()

    def came_s(sock: object) -> float:
        nonlocal num_asked
        num_asked += 1
        return 0.0 if comes else math.inf

    async def read_one(stream: FrameStream, hello: Hello) -> None:
        stream._progress_timeout_s = SILENCE_S
        try:
            await stream.read(FrameKind.PIECE, timeout_s=PATIENCE_S)
        except PeerError as error:
            failures.append(str(error))
            raise
        await stream.write(FrameKind.RECEIPT, b"\0")

    async with two(tmp_path, most=1) as (a, b):
        b.answer = read_one
        monkeypatch.setattr(channel, "came_s", came_s)
        frame = encode(FrameKind.PIECE, encode_piece_header(0) + bytes(1000))
        stream = await a.gate.open(b.identity.peer_id, PROTOCOL_BULK)
        stream._writer.write(frame[:500])
        await until(lambda: num_asked >= 5 or bool(failures))
        if comes:
            stream._writer.write(frame[500:])
            assert (await stream.read(FrameKind.RECEIPT)).payload == b"\0"
            stream.done()
        stream.close()
    assert failures == (
        [] if comes else [f"{a.identity.peer_id} sent 460 of 1008 bytes within 0.2 s while PIECE was due"]
    )
