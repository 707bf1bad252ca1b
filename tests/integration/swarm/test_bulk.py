"""Bulk push and pull over real streams: verified, resumed, bounded in memory; a kill never reads as success."""

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.snapshots import CHUNK_BYTES
from dilocoxd.swarm.p2pd.node import Stream
from dilocoxd.swarm.streams import bulk
from dilocoxd.swarm.streams.assemblies import EARLY_PIECES_MAX
from dilocoxd.swarm.streams.bulk import AlreadyHeld, BulkReceiver, BulkSender
from dilocoxd.swarm.streams.chunks import ChunkFetcher, Download
from dilocoxd.swarm.streams.fetch import FetchClient, FetchServer, Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, PROTOCOL_FETCH, FrameStream
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, encode_piece_header, split_piece
from dilocoxd.wire.messages import PEER_MESSAGES, Hello, SegmentHeader
from tests.harness.downloading import download
from tests.integration.swarm.sites import Site, header_of, memory, sites, until

pytestmark = pytest.mark.processes
MIB = 1 << 20
FROST_S = 200.0
"""So long a frozen donor is waited for, if it is: a download takes less on any machine."""


class Inbox:
    """Accepts every payload into one region; remembers what was confirmed."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.confirmed: list[SegmentHeader] = []
        self.receiver = BulkReceiver(self.accept, self.on_received)
        self.refusal: WireError | AlreadyHeld | None = None
        self.asked: Callable[[], None] = lambda: None

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        self.asked()
        if self.refusal is not None:
            raise self.refusal
        return self.region

    async def on_received(self, peer: PeerId, header: SegmentHeader) -> None:
        self.confirmed.append(header)


@contextlib.asynccontextmanager
async def pair(folder: Path, length: int) -> AsyncIterator[tuple[Site, Site, Region, Inbox]]:
    async with sites(folder, 2) as (a, b):
        with memory(length, seed=1) as source, memory(length) as target:
            inbox = Inbox(target)
            await b.serve(PROTOCOL_BULK, inbox.receiver.serve)
            await a.meet(b)
            yield a, b, source, inbox


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 9 * MIB + 5])
async def test_payload_arrives_whole_and_is_confirmed_once(tmp_path: Path, length: int) -> None:
    async with pair(tmp_path, length) as (a, b, source, inbox):
        header = await header_of(source)
        sender = BulkSender(a.gate)
        await sender.send_segment(b.peer_id, header, source)
        assert await inbox.region.sha256() == header.segment_sha256
        assert inbox.confirmed == [header]
        await sender.send_segment(b.peer_id, header, source, is_new=False)
        assert inbox.confirmed == [header]
        assert sender.counts["bytes_sent"] == length, "a payload that is there already is not sent again"


async def test_offer_that_came_before_its_proposal_waits_for_it(tmp_path: Path) -> None:
    async with pair(tmp_path, MIB) as (a, b, source, inbox):
        asked = asyncio.Event()
        inbox.refusal, inbox.asked = WireError(bulk.NOT_YET, "no proposal"), asked.set
        header = await header_of(source)
        async with asyncio.TaskGroup() as group:
            group.create_task(BulkSender(a.gate).send_segment(b.peer_id, header, source, attempts=1))
            await asked.wait()
            inbox.receiver.look_again()  # something else has happened
            inbox.refusal = None
            inbox.receiver.look_again()
        assert inbox.confirmed == [header]


async def test_offer_whose_proposal_does_not_come_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "EARLY_OFFER_S", 0.1)
    async with pair(tmp_path, MIB) as (a, b, source, inbox):
        inbox.refusal = WireError(bulk.NOT_YET, "no proposal")
        with pytest.raises(Refused, match="not_yet"):
            await BulkSender(a.gate).send_segment(b.peer_id, await header_of(source), source, attempts=1)


async def test_first_pieces_of_what_is_new_come_before_the_offer_is_answered(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        early: list[int] = []

        async def wait_for_pieces(stream: FrameStream, hello: Hello) -> None:
            await stream.read(FrameKind.OFFER)
            for _ in range(EARLY_PIECES_MAX):
                early.append(split_piece((await stream.read(FrameKind.PIECE)).payload)[0])
            await stream.refuse("busy", "enough seen")
            await stream.read(FrameKind.FINISHED)

        await b.serve(PROTOCOL_BULK, wait_for_pieces)
        await a.meet(b)
        with memory(6 * PIECE_BYTES, seed=1) as source:
            header = await header_of(source)
            with pytest.raises(Refused, match="enough seen"):
                await BulkSender(a.gate, lanes_max=1).send_segment(b.peer_id, header, source, attempts=1)
            assert early == [0, 1, 2, 3]
            a.gate.progress_timeout_s = 0.5
            with pytest.raises(PeerError, match="nothing within"):
                await BulkSender(a.gate, lanes_max=1).send_segment(b.peer_id, header, source, attempts=1, is_new=False)
            assert len(early) == EARLY_PIECES_MAX


async def test_payload_is_told_of_with_its_last_piece_and_not_after_another_round_trip(tmp_path: Path) -> None:
    async with pair(tmp_path, 2 * PIECE_BYTES) as (a, b, source, inbox):
        header = await header_of(source)
        stream = await a.gate.open(b.peer_id, PROTOCOL_BULK)
        await stream.write(FrameKind.OFFER, PEER_MESSAGES.encode(header))
        for index in range(2):
            await stream.write(FrameKind.PIECE, encode_piece_header(index), await source.read_piece(index))
        await until(lambda: inbox.confirmed == [header], "the payload")
        await stream.write(FrameKind.FINISHED)
        await stream.read(FrameKind.HOLDING)
        assert (await stream.read(FrameKind.RECEIPT)).message == bulk.RECEIPT_COMPLETE
        assert inbox.confirmed == [header]
        stream.close()


@pytest.mark.parametrize("refusal", [WireError("not_wanted", "no"), AlreadyHeld()])
async def test_pieces_that_come_early_and_are_not_needed_are_thrown_away(
    tmp_path: Path, refusal: WireError | AlreadyHeld
) -> None:
    async with pair(tmp_path, 6 * PIECE_BYTES) as (a, b, source, inbox):
        header, sender = await header_of(source), BulkSender(a.gate)
        inbox.refusal = refusal
        with pytest.raises(Refused) if isinstance(refusal, WireError) else contextlib.nullcontext():
            await sender.send_segment(b.peer_id, header, source, attempts=1)
        assert inbox.receiver.counts["bytes_received"] == 0
        inbox.refusal = None
        await sender.send_segment(b.peer_id, header, source)
        assert inbox.confirmed == [header]
        assert b.guard.bad_input() == {}


async def test_wrong_hash_is_never_confirmed(tmp_path: Path) -> None:
    async with pair(tmp_path, MIB) as (a, b, source, inbox):
        header = await header_of(source, sha256=bytes(32))
        with pytest.raises(PeerError, match="bad_hash"):
            await BulkSender(a.gate).send_segment(b.peer_id, header, source, attempts=2)
        assert inbox.confirmed == []
        assert b.guard.bad_input()[a.peer_id]["bad_hash"] == 2


async def test_refusal_names_its_reason_and_is_not_repeated(tmp_path: Path) -> None:
    async with pair(tmp_path, MIB) as (a, b, source, inbox):
        inbox.refusal = WireError("stale", "round 0 is over")
        sender = BulkSender(a.gate)
        with pytest.raises(Refused, match="round 0 is over"):
            await sender.send_segment(b.peer_id, await header_of(source), source)
        assert sender.counts["offers_repeated"] == 0


async def test_payload_of_an_earlier_attempt_is_confirmed_without_bytes(tmp_path: Path) -> None:
    async with pair(tmp_path, 3 * MIB + 1) as (a, b, source, inbox):
        inbox.refusal = AlreadyHeld()
        sender = BulkSender(a.gate)
        await sender.send_segment(b.peer_id, await header_of(source), source, is_new=False)
        assert sender.counts["bytes_sent"] == 0
        assert inbox.confirmed == []


async def test_payload_that_comes_too_early_is_offered_again(tmp_path: Path) -> None:
    async with pair(tmp_path, MIB) as (a, b, source, inbox):
        inbox.refusal = WireError("busy", "no proposal seen yet")
        async with asyncio.TaskGroup() as group:
            sender = BulkSender(a.gate)
            group.create_task(sender.send_segment(b.peer_id, await header_of(source), source, attempts=50))
            await until(lambda: sender.counts["offers_repeated"] > 0, "one offer is refused")
            inbox.refusal = None
        assert len(inbox.confirmed) == 1
        assert b.guard.bad_input() == {}


async def test_interrupted_payload_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with pair(tmp_path, 16 * MIB) as (a, b, source, inbox):
        header = await header_of(source)
        num_pieces, sent = source.num_pieces, 0

        async def break_down(to: PeerId, num_bytes: int) -> None:
            nonlocal sent
            sent += 1
            if sent == num_pieces // 2:
                raise PeerError("the link broke")

        sender = BulkSender(a.gate, break_down)
        await sender.send_segment(b.peer_id, header, source)
        assert inbox.confirmed == [header]
        assert await inbox.region.sha256() == header.segment_sha256
        assert sender.counts["offers_repeated"] == 1
        lost_at_most = 4 * PIECE_BYTES + bulk.LANES_MAX * MIB
        assert sender.counts["bytes_sent"] <= source.length + lost_at_most


@pytest.mark.parametrize("victim", ["sender", "receiver"])
async def test_p2pd_killed_in_mid_transfer_never_reads_as_success(tmp_path: Path, victim: str) -> None:
    async with pair(tmp_path, 64 * MIB) as (a, b, source, inbox):
        header, sent = await header_of(source), 0

        async def kill_half_way(to: PeerId, num_bytes: int) -> None:
            nonlocal sent
            sent += 1
            if sent == source.num_pieces // 2:
                os.kill((a if victim == "sender" else b).node.p2pd_pid, signal.SIGKILL)

        with pytest.raises(PeerError):
            await BulkSender(a.gate, kill_half_way).send_segment(b.peer_id, header, source, attempts=1)
        assert inbox.confirmed == []
        lost = a if victim == "sender" else b
        await lost.node.wait_p2pd_death()
        await lost.node.start()
        await lost.meet(b if lost is a else a)
        again = BulkSender(a.gate)
        await again.send_segment(b.peer_id, header, source)
        assert inbox.confirmed == [header]
        assert again.counts["bytes_sent"] < source.length, "pieces that arrived are not sent again"


async def test_frozen_receiver_is_given_up(tmp_path: Path) -> None:
    async with pair(tmp_path, 32 * MIB) as (a, b, source, _):
        a.gate.progress_timeout_s = 1.0
        pid = b.node.p2pd_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(PeerError):
                await BulkSender(a.gate).send_segment(b.peer_id, await header_of(source), source, attempts=1)
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_forgotten_payload_is_not_written_any_more(tmp_path: Path) -> None:
    async with pair(tmp_path, 8 * MIB) as (a, b, source, inbox):
        header, sent = await header_of(source), 0

        async def forget_half_way(to: PeerId, num_bytes: int) -> None:
            nonlocal sent
            sent += 1
            if sent == source.num_pieces // 2:
                inbox.receiver.forget(lambda header: True)
                inbox.refusal = WireError("stale", "over")

        with pytest.raises(PeerError):
            await BulkSender(a.gate, forget_half_way).send_segment(b.peer_id, header, source, attempts=1)
        assert inbox.confirmed == []


@pytest.mark.slow
async def test_memory_of_a_400_mb_transfer_stays_flat(tmp_path: Path) -> None:
    async with pair(tmp_path, 4 * MIB) as (a, b, small, _):
        await BulkSender(a.gate).send_segment(b.peer_id, await header_of(small), small)
    source_path, target_path = tmp_path / "source", tmp_path / "target"
    block = hashlib.shake_256(b"400 MB").digest(MIB)
    with source_path.open("wb") as file:
        for _ in range(400):
            file.write(block)
    target_path.touch()
    async with sites(tmp_path / "big", 2) as (a, b):
        with source_path.open("rb") as source_file, target_path.open("r+b") as target_file:
            source = Region(source_file.fileno(), 0, 400 * MIB, is_on_disk=True)
            inbox = Inbox(Region(target_file.fileno(), 0, 400 * MIB, is_on_disk=True))
            await b.serve(PROTOCOL_BULK, inbox.receiver.serve)
            await a.meet(b)
            processes = [psutil.Process(), psutil.Process(a.node.p2pd_pid), psutil.Process(b.node.p2pd_pid)]
            before = [process.memory_info().rss for process in processes]
            peak = list(before)

            async def watch(to: PeerId, num_bytes: int) -> None:
                for index, process in enumerate(processes):
                    peak[index] = max(peak[index], process.memory_info().rss)

            header = await header_of(source)
            await BulkSender(a.gate, watch).send_segment(b.peer_id, header, source)
            assert inbox.confirmed == [header]
    growth = [(after - start) / MIB for start, after in zip(before, peak, strict=True)]
    print("growth in MiB, python (both ends) and the two p2pd:", [round(value) for value in growth])
    assert growth[0] < 32
    assert max(growth[1:]) < 128


class Library:
    """Serves named regions."""

    def __init__(self, **resources: Region) -> None:
        self.resources = resources
        self.server = FetchServer(self.open)
        self.num_open = 0

    async def open(self, peer: PeerId, name: str) -> Served:
        if name not in self.resources:
            raise WireError("not_found", f"no resource {name}")
        self.num_open += 1
        return Served(self.resources[name], await self.resources[name].sha256(), self.close)

    def close(self) -> None:
        self.num_open -= 1


async def test_fetch_gives_whole_and_ranges_and_refuses_the_rest(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        with memory(3 * MIB + 7, seed=2) as region, memory(0) as empty:
            library = Library(data=region, empty=empty)
            await a.serve(PROTOCOL_FETCH, library.server.serve)
            await b.meet(a)
            client = FetchClient(b.gate)
            wanted = os.pread(region.fd, region.length, 0)
            assert await client.fetch_bytes(a.peer_id, "data", bytes_max=4 * MIB) == wanted
            assert await client.fetch_bytes(a.peer_id, "empty", bytes_max=1) == b""
            with memory(1000) as part:
                await client.fetch_region(a.peer_id, "data", part, offset=2 * MIB)
                assert os.pread(part.fd, 1000, 0) == wanted[2 * MIB : 2 * MIB + 1000]
            with pytest.raises(Refused, match="no resource nothing"):
                await client.fetch_bytes(a.peer_id, "nothing", bytes_max=10)
            with pytest.raises(WireError, match="at most 100"):
                await client.fetch_bytes(a.peer_id, "data", bytes_max=100)
            await until(lambda: library.num_open == 0, "every opened resource is closed again")


async def test_download_survives_dead_and_lying_donors(tmp_path: Path) -> None:
    length = 5 * CHUNK_BYTES + 1234
    async with sites(tmp_path, 5) as (me, good, liar, dying, empty):
        with memory(length, seed=3) as truth, memory(length, seed=4) as lie, memory(length) as target:
            for donor, region in ((good, truth), (liar, lie), (dying, truth)):
                await donor.serve(PROTOCOL_FETCH, Library(snapshot=region).server.serve)
            await empty.serve(PROTOCOL_FETCH, Library().server.serve)
            for donor in (good, liar, dying, empty):
                await me.meet(donor)
            regions = [Region(truth.fd, n * CHUNK_BYTES, min(CHUNK_BYTES, length - n * CHUNK_BYTES)) for n in range(6)]
            plan = Download("snapshot", target, tuple([await region.sha256() for region in regions]))
            os.kill(dying.node.p2pd_pid, signal.SIGKILL)
            client, named = FetchClient(me.gate), set[PeerId]()
            client.on_bad = lambda peer, error: named.add(peer)
            given = await download(
                ChunkFetcher(client, plan), [liar.peer_id, dying.peer_id, empty.peer_id, good.peer_id]
            )
            assert await target.sha256() == await truth.sha256()
            assert named <= {liar.peer_id}
            assert given == {good.peer_id: 6}
            assert not await download(ChunkFetcher(client, plan), []), "what is right already is not fetched again"


async def test_download_without_any_good_donor_says_why(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (me, liar):
        with memory(CHUNK_BYTES, seed=5) as lie, memory(CHUNK_BYTES) as target:
            await liar.serve(PROTOCOL_FETCH, Library(snapshot=lie).server.serve)
            await me.meet(liar)
            chunks = ChunkFetcher(FetchClient(me.gate), Download("snapshot", target, (bytes(32),)))
            with pytest.raises(PeerError, match=f"1 of 1 chunks missing: {liar.peer_id}: bad_hash"):
                await download(chunks, [liar.peer_id])


async def test_donor_that_stalls_does_not_hold_up_the_end_and_a_liar_is_named(tmp_path: Path) -> None:
    length = 6 * CHUNK_BYTES
    async with sites(tmp_path, 4) as (me, good, liar, frozen):
        with memory(length, seed=3) as truth, memory(length, seed=4) as lie, memory(length) as target:
            for donor, region in ((good, truth), (liar, lie), (frozen, truth)):
                await donor.serve(PROTOCOL_FETCH, Library(snapshot=region).server.serve)
                await me.meet(donor)
            regions = [Region(truth.fd, n * CHUNK_BYTES, CHUNK_BYTES) for n in range(6)]
            plan = Download("snapshot", target, tuple([await region.sha256() for region in regions]))
            client, named = FetchClient(me.gate), list[str]()
            client.on_bad = lambda peer, error: named.append(f"{peer} {error.code}")
            os.kill(frozen.node.p2pd_pid, signal.SIGSTOP)
            opened = me.node.open_stream

            async def open_patiently(peer: PeerId, protocol: str, *, timeout_s: float = FROST_S) -> Stream:
                return await opened(peer, protocol, timeout_s=FROST_S)

            me.node.open_stream = open_patiently  # type: ignore[method-assign]
            me.gate.progress_timeout_s = FROST_S
            started = asyncio.get_running_loop().time()
            try:
                given = await download(ChunkFetcher(client, plan), [frozen.peer_id, liar.peer_id, good.peer_id])
            finally:
                os.kill(frozen.node.p2pd_pid, signal.SIGCONT)
            assert asyncio.get_running_loop().time() - started < FROST_S, "it waited for the frozen one"
            assert await target.sha256() == await truth.sha256()
            assert set(named) == {f"{liar.peer_id} bad_hash"}
            assert given == {good.peer_id: 6}
