"""Payloads that a node sends itself: both ends of the orders, and the data connections, over loopback. S11.11, S11.12.

Without processes: what head and node say to each other is encoded and decoded, and goes from one to the other at once.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.chain.payload_map import PayloadMaps, Place
from dilocoxd.daemon.node.part_uploads import PartUploads
from dilocoxd.daemon.node.uplink import Uplink
from dilocoxd.daemon.round.transfers import ByNode, Transfers
from dilocoxd.daemon.uploads.orders import NodeUploads, SiteUploads
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.errands import Errands
from dilocoxd.daemon.workers.outer_worker import _Session
from dilocoxd.errors import WireError, WorkerError
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.facts import SegmentSent
from dilocoxd.machines.exchange.orders import SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, SegmentKey
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.direct.nodes import NodeCredentials, certify
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.wire.frames import PIECE_BYTES
from dilocoxd.wire.local.buffers import OUTBOX, Buffer
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.uploads import SendPayload, StopPayload, UploadPeer, UploadWay
from dilocoxd.wire.messages import SegmentHeader
from tests.unit.swarm.direct.ends import HEADER, RUN, End, two

LENGTH = 6 * PIECE_BYTES + 5
AT = 3
WAIT_S = 60.0
FOREVER_S = 3600.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


class Taker:
    """Has an end take any payload into memory, and hold back what it was not told to let go on."""

    def __init__(self, end: End) -> None:
        self.fd = os.memfd_create("taken")
        os.ftruncate(self.fd, LENGTH)
        self.refusal: WireError | None = None
        self.arrived: list[tuple[PeerId, SegmentHeader]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.bulk = BulkReceiver(self._accept, self._received)
        end.answer = self.bulk.serve

    def _accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        if self.refusal is not None:
            raise self.refusal
        return Region(self.fd, 0, header.segment_bytes)

    async def _received(self, peer: PeerId, header: SegmentHeader) -> None:
        await self.may_end.wait()
        self.arrived.append((peer, header))

    def data(self) -> bytes:
        return os.pread(self.fd, LENGTH, 0)


class NodeOfPart:
    """A node with one part, as the head knows it (`errands`) and as it is."""

    def __init__(self) -> None:
        self.payload = os.urandom(LENGTH)
        self.buffers = Buffers()
        self.buffers.provide([Buffer(OUTBOX, AT + LENGTH)])
        self.buffers.write(OUTBOX, AT, self.payload)
        self.uplink = Uplink()
        self.uploads = PartUploads(self.uplink, self.buffers, lambda said: self.to_head(said))
        connection: Any = self
        self.session = _Session(connection)
        self.errands: Errands | None = self.session.errands

    def send(self, message: Any) -> None:
        """Of the head, as a connection does."""
        assert self.uploads.take(LOCAL_MESSAGES.decode(LOCAL_MESSAGES.encode(message)))

    def to_head(self, message: Any) -> None:
        if self.errands is not None:
            self.session.on_message(LOCAL_MESSAGES.decode(LOCAL_MESSAGES.encode(message)))

    def header(self) -> SegmentHeader:
        sha256 = hashlib.sha256(self.payload).digest()
        return dataclasses.replace(HEADER, segment_bytes=LENGTH, piece_bytes=LENGTH, segment_sha256=sha256)


@dataclasses.dataclass
class World:
    """Head `a` with its node, and the other site `b`."""

    a: End
    b: End
    node: NodeOfPart
    taker: Taker
    head: NodeUploads
    group: asyncio.TaskGroup

    @property
    def peer(self) -> PeerId:
        return self.b.identity.peer_id

    def send(self, is_new: bool = True) -> "asyncio.Task[ByNode]":
        sending = self.head.send(self.peer, self.node.header(), Place(OUTBOX, AT, LENGTH), is_new=is_new)
        return self.group.create_task(sending)

    async def outcome(self, sending: "asyncio.Task[ByNode]") -> ByNode:
        async with asyncio.timeout(WAIT_S):
            return await sending

    async def reached(self) -> None:
        await until(lambda: self.head.reaching(self.peer) == (0,))


@contextlib.asynccontextmanager
async def world(folder: Path, **site: Any) -> AsyncIterator[World]:
    node: Any = NodeOfPart()
    async with two(folder) as (a, b), asyncio.TaskGroup() as group:
        a.keys[a.identity.peer_id] = a.identity.public_key_der
        given = SiteUploads(partial(certify, a.identity), str(RUN), lambda: b"", 8, 4)
        head = NodeUploads(
            [node], lambda segment: node, a.plane, BulkSender(a.gate), dataclasses.replace(given, **site)
        )
        tasks = [group.create_task(work) for work in (node.uplink.run(), node.uploads.run(), head.run())]
        yield World(a, b, node, Taker(b), head, group)
        for task in tasks:
            task.cancel()


async def test_node_sends_in_the_name_of_its_site_and_is_no_host_of_it(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        me = it.a.identity.peer_id
        assert await it.send() is ByNode.DONE
        assert it.taker.arrived == [(me, it.node.header())] and it.taker.data() == it.node.payload
        ways = it.node.uplink._ways
        assert ways is not None and not ways.plane.listener._anchors, "nobody comes to a node"
        assert it.a.node.num_asked == 0 and not it.head._bulk.counts["bytes_sent"], "nothing of it went by the head"
        nodes = [link for link in it.b.listener.links(me) if link.is_of_node]
        assert nodes and not [link for link in it.b.plane._links()[me] if link.is_of_node]
        shown = it.head.parts[0].shown()
        assert (shown.payloads, shown.bytes, shown.payloads_by_head) == (1, LENGTH, 0)
        assert shown.reached == (it.peer,) and not shown.unreached
        assert it.head._bulk.bytes_per_s[it.peer] > 0, "the site's own measure of the link"


async def test_other_bytes_than_the_header_names_are_not_sent(tmp_path: Path) -> None:
    """A head that was started anew has its contribution from a file, and its nodes have none of it."""
    async with world(tmp_path) as it:
        await it.reached()
        it.node.buffers.punch(OUTBOX, 0, AT + LENGTH)
        assert await it.send() is ByNode.NOT_BEGUN
        assert not it.taker.bulk.counts and it.head.parts[0].shown().payloads_by_head == 1


async def test_refusal_of_a_payload_is_the_answer_and_not_a_reason_to_send_it_again(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        it.taker.refusal = WireError("not_wanted", "no such segment")
        with pytest.raises(ExceptionGroup) as told:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    it.head.send(it.peer, it.node.header(), Place(OUTBOX, AT, LENGTH), is_new=True)
                )  # fmt: skip
        (refused,) = told.value.exceptions
        assert isinstance(refused, Refused) and refused.code == "not_wanted"
        it.taker.refusal = WireError("not_admitted", "of who asks: the head hears that itself")
        assert await it.send() is ByNode.BROKEN


async def test_payload_that_is_called_off_is_read_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        it.taker.may_end.clear()
        sending = it.send()
        await until(lambda: it.taker.bulk.counts["bytes_received"] == LENGTH)
        assert len(it.node.uploads._under_way) == 1
        sending.cancel()
        await until(lambda: not it.node.uploads._under_way and not it.node.uploads._proofs)


async def test_node_that_is_lost_in_mid_payload_leaves_it_to_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dilocoxd.daemon.workers.errands.SILENCE_S", FOREVER_S)
    async with world(tmp_path) as it:
        await it.reached()
        it.taker.may_end.clear()
        sending = it.send()
        await until(lambda: it.taker.bulk.counts["bytes_received"] == LENGTH)
        it.node.session.on_ended("its cable was cut")
        it.node.errands = None
        assert await it.outcome(sending) is ByNode.BROKEN
        await until(lambda: it.head.reaching(it.peer) == ())
        it.taker.may_end.set()
        region = Region(it.node.buffers.fd(OUTBOX), AT, LENGTH)
        await it.head._bulk.send_segment(it.peer, it.node.header(), region, is_new=False)
        assert it.head._bulk.counts["bytes_sent"] == 0, "all pieces were there, from the same site"


async def test_site_that_the_node_does_not_reach_is_told_with_the_reason(tmp_path: Path) -> None:
    """Its certificate has ended, as on a machine whose clock is wrong."""
    async with world(tmp_path) as it:
        late = partial(certify, it.a.identity, life_s=-3600.0)
        it.head._site = dataclasses.replace(it.head._site, certify=late)
        await until(lambda: bool(it.head.parts[0].shown().unreached))
        (unreached,) = it.head.parts[0].shown().unreached
        assert unreached.peer_id == it.peer and "look at the clocks of both sites" in unreached.reason
        assert await it.send() is ByNode.NOT_BEGUN and it.head.reaching(it.peer) == ()


async def test_site_of_an_older_protocol_gets_payloads_from_the_head_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        say = it.b.gate.bare_hello
        it.b.gate.bare_hello = lambda: dataclasses.replace(say(), protocol_minor=1)  # type: ignore[method-assign]
        it.a.plane.drop(it.peer)
        it.a.plane.meet(it.peer, it.b.listener.port)
        await until(lambda: [one.peer_id for one in it.head.parts[0].shown().unreached] == [it.peer])
        assert "before 2.2" in it.head.parts[0].shown().unreached[0].reason
        assert await it.send() is ByNode.NOT_BEGUN and not it.taker.bulk.counts


async def test_node_tells_of_no_sites_that_it_was_not_told_of(tmp_path: Path) -> None:
    """Whoever took its key would have the head keep as many as it likes."""
    async with world(tmp_path) as it:
        await it.reached()
        assert it.node.errands is not None
        it.node.to_head(UploadWay("somebody", True, ""))
        assert list(it.head.parts[0].ways) == [it.peer]
        it.a.plane.drop(it.peer)
        await until(lambda: not it.head.parts[0].ways)
        it.a.plane.meet(it.peer, it.b.listener.port)
        it.b.plane.meet(it.a.identity.peer_id, it.a.listener.port)
        await it.reached()


async def test_site_that_is_told_anew_between_two_looks_is_told_of_again(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        part = it.head.parts[0]
        place = part.told[it.peer]
        part.ways.clear()
        it.node.send(UploadPeer(it.peer, b"", "", 0))
        it.node.send(place)
        await it.reached()


async def test_site_that_went_back_to_an_older_protocol_is_left_by_the_node_itself(tmp_path: Path) -> None:
    """The head hears of it when it next connects, and a node may be there before it."""
    async with world(tmp_path) as it:
        await it.reached()
        say, me = it.b.gate.bare_hello, it.a.identity.peer_id
        it.b.gate.bare_hello = lambda: dataclasses.replace(say(), protocol_minor=1)  # type: ignore[method-assign]
        for link in it.b.listener.links(me):
            if link.is_of_node:
                link.abort()
        assert await it.send() is ByNode.NOT_BEGUN and not it.taker.bulk.counts
        await until(lambda: [one.peer_id for one in it.head.parts[0].shown().unreached] == [it.peer])
        assert "protocol 2.1" in it.head.parts[0].shown().unreached[0].reason


async def test_payload_waits_for_a_free_connection_of_the_node_as_long_as_others_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon has p2pd's streams beside them; from a node the head would have all that waits on a slow link."""
    monkeypatch.setattr("dilocoxd.swarm.direct.plane.SLOT_WAIT_S", 0.0)
    async with world(tmp_path, connections=1) as it:
        await it.reached()
        assert it.node.uplink._ways is not None
        is_free = asyncio.Event()

        async def throttle(_: PeerId, num_bytes: int) -> None:
            await is_free.wait()

        it.node.uplink._ways.sender.throttle = throttle
        both = [it.send(), it.send()]
        await until(lambda: len(it.node.uploads._under_way) == 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        is_free.set()
        assert [await it.outcome(each) for each in both] == [ByNode.DONE] * 2


async def test_node_rests_no_connection_on_a_certificate_of_before(tmp_path: Path) -> None:
    """The other site ends it with the certificate (I12.6), maybe in mid-payload."""
    async with world(tmp_path) as it:
        await it.reached()
        assert it.node.uplink._ways is not None
        (route,) = it.node.uplink._ways.plane.routes().values()
        it.taker.may_end.clear()
        sending, before = it.send(), it.head.parts[0].passed_at
        await until(lambda: it.taker.bulk.counts["bytes_received"] == LENGTH)
        used = {link for link in route.used if link.num_under_way}  # a further one may be open by now, and idle
        it.head.parts[0].passed_at = float("-inf")
        await until(lambda: it.head.parts[0].passed_at > before)
        assert route.used == used and not route.resting()
        it.taker.may_end.set()
        assert await it.outcome(sending) is ByNode.DONE, "what is under way goes on"
        assert not route.used and not route.resting()
        assert await it.send() is ByNode.DONE and route.resting()


async def test_site_whose_host_falls_silent_is_given_up_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        ways = it.node.uplink._ways
        assert ways is not None
        ways.plane.progress_timeout_s = ways.gate.progress_timeout_s = FOREVER_S
        it.taker.may_end.clear()
        sending = it.send()
        await until(lambda: it.taker.bulk.counts["bytes_received"] == LENGTH)
        ways.plane.on_hosts(HostsHeard(frozenset(), frozenset({it.peer})))
        assert await it.outcome(sending) is ByNode.BROKEN


async def test_evicted_site_is_forgotten_by_nodes_too(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        it.a.plane.drop(it.peer)
        await until(lambda: it.head.reaching(it.peer) == () and not it.node.uplink.ways())


async def test_node_at_the_data_port_of_a_site_is_not_taken_for_it(tmp_path: Path) -> None:
    """Who stole a node's key could else take payloads in the site's name, and confirm them."""
    async with two(tmp_path) as (a, b):
        thief = Uplink()
        b.listener._credentials = NodeCredentials(thief._key, certify(b.identity, thief.public_key))
        b.listener._forget(set())
        a.plane.drop(b.identity.peer_id)
        a.plane.meet(b.identity.peer_id, b.listener.port)
        b.plane.meet(a.identity.peer_id, a.listener.port)
        await until(lambda: "a node answers" in a.plane.view(b.identity.peer_id).reason)


async def test_silence_of_a_node_ends_the_wait_for_a_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.workers.errands.SILENCE_S", 0.05)
    said: list[Any] = []
    errands = Errands(said.append)
    with pytest.raises(WorkerError, match="said nothing"):
        await errands.send_payload(SendPayload(0, "peer", OUTBOX, 0, b"x", True))
    assert [type(each) for each in said] == [SendPayload, StopPayload], "and it is called off"


@pytest.mark.parametrize("is_there", [True, False])
async def test_payload_leaves_the_head_where_its_node_does_not_send_it(tmp_path: Path, is_there: bool) -> None:
    async with world(tmp_path) as it:
        await it.reached()
        told: asyncio.Queue[Any] = asyncio.Queue()
        own, maps = Buffers(), PayloadMaps({0: ((AT, LENGTH),)})
        own.provide([Buffer(OUTBOX, AT + LENGTH)])
        own.write(OUTBOX, AT, it.node.payload)
        if not is_there:
            it.node.buffers.punch(OUTBOX, 0, AT + LENGTH)
        transfers = Transfers(RUN, own, maps, (it.head._bulk, it.taker.bulk), told.put_nowait)
        transfers.uploads = it.head
        key = SegmentKey(KIND_CONTRIBUTION, RoundIndex(0), Attempt(0), 0, 1, PhaseId(0))
        transfers.start(
            SendSegment(it.peer, key, Digest(it.node.header().segment_sha256), root=Digest(bytes(32))), it.group
        )
        async with asyncio.timeout(WAIT_S):
            assert await told.get() == SegmentSent(it.peer, key)
        assert it.taker.data() == it.node.payload
        by_node, by_head = it.head.parts[0].shown().bytes, it.head._bulk.counts["bytes_sent"]
        assert (by_node, by_head) == ((LENGTH, 0) if is_there else (0, LENGTH))
