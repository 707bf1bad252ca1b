"""The hash of a payload while its pieces come: from memory as long as they come in order, the rest from their place."""

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from dilocoxd.daemon.workers import buffers
from dilocoxd.errors import StoreError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams import pieces
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import EarlyPieces, HashInOrder, Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.wire.frames import PIECE_BYTES, encode_piece_header
from dilocoxd.wire.messages import SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, two

NUM_PIECES = 4
LENGTH = (NUM_PIECES - 1) * PIECE_BYTES + 100
START = 5000
"""Of the region: not where a page begins."""
PAYLOAD = os.urandom(LENGTH)


def sealed() -> int:
    """As the daemon's own buffers are."""
    return buffers._create("place", START + LENGTH)


def plain() -> int:
    return os.memfd_create("place")


@pytest.fixture(params=[sealed, plain])
def region(request: pytest.FixtureRequest) -> Iterator[Region]:
    create: Callable[[], int] = request.param
    fd = create()
    yield Region(fd, START, LENGTH)
    os.close(fd)


def piece(index: int) -> bytes:
    return PAYLOAD[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]


@pytest.mark.parametrize("order", list(itertools.permutations(range(NUM_PIECES))), ids=str)
async def test_pieces_in_any_order_make_one_hash(
    region: Region, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "MAP_STEP_BYTES", PIECE_BYTES + 4096)
    begun = HashInOrder(EarlyPieces() if order[0] % 2 else None)
    for index in order:
        await region.write_piece(index, memoryview(piece(index)))
        begun.add(index, memoryview(piece(index)))
    assert await region.sha256(begun) == await region.sha256() == sha256(PAYLOAD).digest()
    assert await region.sha256(begun) == sha256(PAYLOAD).digest(), "asked twice"


async def test_what_came_in_order_is_not_read_again(region: Region) -> None:
    begun = HashInOrder()
    for index in range(NUM_PIECES):
        begun.add(index, memoryview(piece(index)))
    assert await region.sha256(begun) == sha256(PAYLOAD).digest(), "nothing was ever written to its place"


async def test_place_that_is_too_short_is_no_crash() -> None:
    fd = sealed()
    with pytest.raises(StoreError, match="the file ends"):
        await Region(fd, START, LENGTH + 1).sha256()
    os.close(fd)


def test_only_what_cannot_shrink_is_looked_at_in_place() -> None:
    first, second = sealed(), plain()
    assert pieces._keeps_its_size(first)
    assert not pieces._keeps_its_size(second)
    with pytest.raises(PermissionError):
        os.ftruncate(first, 1)
    assert fcntl.fcntl(first, pieces._F_GET_SEALS) & pieces._F_SEAL_SHRINK
    os.close(first)
    os.close(second)


async def test_payload_that_was_wrong_once_is_taken_when_it_is_right(tmp_path: Path, region: Region) -> None:
    async def received(peer: PeerId, header: SegmentHeader) -> None:
        return

    wrong, right = os.memfd_create("wrong"), os.memfd_create("right")
    os.write(wrong, PAYLOAD[:-1] + bytes(1) if PAYLOAD[-1] else PAYLOAD[:-1] + b"x")
    os.write(right, PAYLOAD)
    header = replace(HEADER, segment_bytes=LENGTH, piece_bytes=LENGTH, segment_sha256=sha256(PAYLOAD).digest())
    async with two(tmp_path) as (a, b):
        receiver = BulkReceiver(lambda peer, header: region, received)
        b.answer, sender = receiver.serve, BulkSender(a.gate)
        with pytest.raises(Refused, match="bad_hash"):
            await sender.send_segment(b.identity.peer_id, header, Region(wrong, 0, LENGTH), attempts=1)
        await sender.send_segment(b.identity.peer_id, header, Region(right, 0, LENGTH), attempts=1)
        assert receiver.counts == {"bytes_received": 2 * LENGTH, "payloads_bad_hash": 1, "payloads_received": 1}
    assert os.pread(region.fd, LENGTH, START) == PAYLOAD
    os.close(wrong)
    os.close(right)


async def test_pieces_that_are_early_are_hashed_from_the_memory_in_which_they_came(region: Region) -> None:
    early = EarlyPieces()
    begun = HashInOrder(early)
    for index in reversed(range(NUM_PIECES)):
        begun.add(index, memoryview(piece(index)))
    assert await region.sha256(begun) == sha256(PAYLOAD).digest(), "nothing was ever written to its place"
    assert early.num_waiting == 0


async def test_early_pieces_have_so_much_room_and_what_lost_it_is_read_from_its_place(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "EARLY_MAX", 2)
    os.pwrite(region.fd, PAYLOAD, START)
    early = EarlyPieces()
    first, second = HashInOrder(early), HashInOrder(early)
    first.add(1, memoryview(piece(1)))
    for index in (1, 2):
        second.add(index, memoryview(bytes(len(piece(index)))))
        assert early.num_waiting == 2
    first.add(2, memoryview(piece(2)))
    assert early.num_waiting == 2, "what lost one keeps none"
    first.add(0, memoryview(piece(0)))
    assert first.so_far()[1] == len(piece(0))
    assert await region.sha256(first) == sha256(PAYLOAD).digest()
    early.forget(second)
    assert early.num_waiting == 0


async def test_payload_that_is_forgotten_keeps_no_early_pieces(region: Region) -> None:
    """Its round is over before the piece in front came."""

    async def received(peer: PeerId, header: SegmentHeader) -> None:
        raise AssertionError("nothing was received whole")

    header = replace(HEADER, segment_bytes=LENGTH, piece_bytes=LENGTH)
    receiver = BulkReceiver(lambda peer, header: region, received)
    assembly = receiver._assembly(PeerId("a peer"), header)
    await receiver._take(assembly, encode_piece_header(1) + piece(1))
    assert receiver._assemblies.early.num_waiting == 1
    receiver.forget(lambda header: True)
    assert receiver._assemblies.early.num_waiting == 0


async def test_early_pieces_are_hashed_a_few_at_a_time(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "TURN_PIECES", 1)
    os.pwrite(region.fd, PAYLOAD, START)
    early = EarlyPieces()
    begun = HashInOrder(early)
    for index in (2, 3, 1, 0):
        begun.add(index, memoryview(piece(index)))
    assert begun.so_far()[1] == 2 * PIECE_BYTES
    assert early.num_waiting == 2
    assert await region.sha256(begun) == sha256(PAYLOAD).digest()


async def test_payload_that_is_whole_keeps_no_early_pieces(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "TURN_PIECES", 1)

    async def received(peer: PeerId, header: SegmentHeader) -> None:
        assert receiver._assemblies.early.num_waiting == 0

    header = replace(HEADER, segment_bytes=LENGTH, piece_bytes=LENGTH, segment_sha256=sha256(PAYLOAD).digest())
    receiver = BulkReceiver(lambda peer, header: region, received)
    assembly = receiver._assembly(PeerId("a peer"), header)
    for index in (2, 3, 1, 0):
        await receiver._take(assembly, encode_piece_header(index) + piece(index))
    assert receiver._assemblies.early.num_waiting == 2
    assert await receiver._settle(PeerId("a peer"), header, assembly)
