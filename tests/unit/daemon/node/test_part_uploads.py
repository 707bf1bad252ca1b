"""What a node reads of a part's buffers for payloads that it sends, and until when: as ordered, and no longer."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dilocoxd.daemon.node.uplink import Uplink
from dilocoxd.errors import StoreError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.nodes import certify
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.frames import PIECE_BYTES
from dilocoxd.wire.local.buffers import OUTBOX
from dilocoxd.wire.local.uploads import (
    DONE,
    FAILED,
    NOT_HERE,
    PayloadSent,
    SendPayload,
    StopPayload,
    UploadPass,
    UploadPeer,
)
from dilocoxd.wire.messages import PEER_MESSAGES, SegmentHeader
from tests.unit.daemon.node.test_uploads import AT, LENGTH, NodeOfPart, until
from tests.unit.swarm.direct.ends import RUN, two


class SlowUplink(Uplink):
    """Is given what to send, and sends it when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[PeerId, Region] = {}
        self.may_send = asyncio.Event()

    async def send(self, peer: PeerId, header: SegmentHeader, source: Region, *, is_new: bool) -> PayloadSent:
        self.sources[peer] = source
        await self.may_send.wait()
        return PayloadSent(0, DONE, num_bytes=source.length)


class SlowNode(NodeOfPart):
    """With a part whose payloads wait to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = self.uplink = self.uploads._uplink = SlowUplink()
        self.said: list[PayloadSent] = []

    def to_head(self, message: object) -> None:
        if isinstance(message, PayloadSent):
            self.said.append(message)

    def order(self, number: int, peer: str, sha256: bytes = b"") -> None:
        header = self.header()
        header = dataclasses.replace(header, segment_sha256=sha256 or header.segment_sha256)
        self.send(SendPayload(number, peer, OUTBOX, AT, PEER_MESSAGES.encode(header), True))

    def outcomes(self) -> dict[int, str]:
        return {said.request: said.outcome for said in self.said}


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[SlowNode]:
    node = SlowNode()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(node.uploads.run())
        await asyncio.sleep(0)
        yield node
        task.cancel()


async def test_what_is_called_off_is_not_read_from_that_moment_on() -> None:
    """The next message may write or punch where it lies, before any task has heard that it is cancelled."""
    async with running() as node:
        node.order(1, "b")
        node.order(2, "c")
        await until(lambda: len(node.slow.sources) == 2)
        of_b, of_c = node.slow.sources[PeerId("b")], node.slow.sources[PeerId("c")]
        assert await of_b.read_piece(0) == node.payload[:PIECE_BYTES]
        node.send(StopPayload(1))
        assert node.outcomes() == {1: FAILED}, "the head counts orders that are not answered"
        with pytest.raises(StoreError):
            await of_b.read_piece(0)
        assert await of_c.read_piece(0) == node.payload[:PIECE_BYTES], "others go on"


async def test_payload_that_goes_to_several_sites_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Region] = []
    sha256 = Region.sha256

    async def counted(region: Region) -> bytes:
        hashed.append(region)
        return await sha256(region)

    monkeypatch.setattr(Region, "sha256", counted)
    async with running() as node:
        for number, peer in enumerate("bcd"):
            node.order(number, peer)
        await until(lambda: len(node.slow.sources) == 3)
        assert len(hashed) == 1
        node.order(3, "e")
        await until(lambda: len(node.slow.sources) == 4)
        assert len(hashed) == 1
        node.slow.may_send.set()
        await until(lambda: node.outcomes() == dict.fromkeys(range(4), DONE))
        node.order(4, "f")
        await until(lambda: 4 in node.outcomes())
        assert len(hashed) == 2, "nobody vouches for the bytes between two orders"


async def test_order_behind_one_that_was_called_off_has_its_bytes_looked_at_anew() -> None:
    async with running() as node:
        node.order(1, "b")
        await until(lambda: len(node.slow.sources) == 1)
        node.send(StopPayload(1))
        node.buffers.write(OUTBOX, AT, os.urandom(LENGTH))
        node.order(2, "b")
        await until(lambda: len(node.said) == 2)
        assert node.outcomes() == {1: FAILED, 2: NOT_HERE}


async def test_order_that_is_called_off_while_its_bytes_are_hashed_leaves_others_of_them_alone() -> None:
    async with running() as node:
        node.order(1, "b")
        node.order(2, "c")
        await asyncio.sleep(0)
        node.send(StopPayload(1))
        node.slow.may_send.set()
        await until(lambda: len(node.said) == 2)
        assert node.outcomes() == {1: FAILED, 2: DONE} and not node.uploads._under_way


async def test_sites_that_a_part_was_told_of_are_forgotten_with_its_life() -> None:
    """Nobody tells the node when one of them is evicted then; another part may still be told of them."""
    node, other = NodeOfPart(), NodeOfPart()
    other.uploads._uplink = node.uplink
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.uploads.run()) for one in (node, other)]
        await asyncio.sleep(0)
        for one, peers in ((node, "bc"), (other, "cd")):
            for peer in peers:
                one.send(UploadPeer(peer, b"", "127.0.0.1", 1))
        for task, left in zip(tasks, (["c", "d"], []), strict=True):
            task.cancel()
            await asyncio.wait([task])
            assert sorted(node.uplink._peers) == left


async def test_node_that_nobody_certifies_any_more_forgets_whom_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head sends everything itself now: else it would knock at doors for ever, its certificate ended."""
    async with two(tmp_path) as (a, b), asyncio.TaskGroup() as group:
        uplink = Uplink()
        running = group.create_task(uplink.run())
        uplink.take_pass(UploadPass(certify(a.identity, uplink.public_key), str(RUN), b"", 0, 8, 4))
        known = UploadPeer(b.identity.peer_id, b.identity.public_key_der, "127.0.0.1", b.listener.port)
        uplink.take_peer(known, "a part")
        assert [way.peer for way in uplink.ways()] == [b.identity.peer_id]
        monkeypatch.setattr("dilocoxd.daemon.node.uplink.NODE_LIFE_S", 0.01)
        await until(lambda: not uplink.ways())
        running.cancel()
