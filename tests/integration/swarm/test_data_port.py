"""Data connections between whole swarm services: who gets them, what they carry, what replaces them. S11."""

import asyncio
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.links import open_link
from dilocoxd.swarm.direct.listener import KEYS_MAX
from dilocoxd.swarm.direct.routes import Route, RouteView
from dilocoxd.swarm.direct.vestibule import EACH, PLACES_ADDRESS
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.p2pd.addresses import parse_address
from dilocoxd.swarm.streams.budget import Budget
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK
from dilocoxd.wire.messages import SegmentHeader
from dilocoxd.wire.records import decode_signed
from tests.harness.running.run_directories import free_port
from tests.integration.swarm.members import Member, a_manifest, running, until_all_know_all
from tests.integration.swarm.sites import header_of, memory, until

pytestmark = pytest.mark.processes
MIB = 1 << 20
CROWD = 500
TLS_ALERT = b"\x15"


class Taker(Member):
    """A member that takes any segment and serves one resource."""

    def __init__(self, folder: Path, *arguments: Any, **changes: Any) -> None:
        super().__init__(folder, *arguments, **changes)
        self.fd = os.memfd_create("taken")
        self.arrived: list[SegmentHeader] = []
        self.served = os.urandom(3 * MIB + 5)
        self.is_busy = False

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        if self.is_busy:
            raise WireError("busy", "not now")
        os.ftruncate(self.fd, header.segment_bytes)
        return Region(self.fd, 0, header.segment_bytes)

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        self.arrived.append(header)

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        if name != "payload/0":
            return await super().open_resource(peer, name)
        fd = os.memfd_create("served")
        os.write(fd, self.served)
        return Served(Region(fd, 0, len(self.served)), hashlib.sha256(self.served).digest(), lambda: os.close(fd))


def two(folder: Path, **changes: Any) -> tuple[Taker, Taker]:
    manifest = a_manifest()
    return Taker(folder / "a", manifest), Taker(folder / "b", manifest, **changes)


def has_data(a: Member, b: Member) -> bool:
    return a.swarm.data is not None and a.swarm.data.view(b.peer_id).is_data


async def meet(a: Member, b: Member) -> None:
    a.swarm.contacts.add_bootstrap(parse_address(b.swarm.addresses()[0]))
    await until_all_know_all(a, b)


async def test_payloads_and_resources_travel_on_connections_that_are_used_again(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a, b):
        await meet(a, b)
        await until(lambda: has_data(a, b) and has_data(b, a), "both data ports answer")
        assert a.swarm.data is not None
        opened_before = a.swarm.data.counts["links_opened"]
        for number in range(3):
            await carried(a, b)
            assert len(b.arrived) == number + 1
        data = await a.swarm.fetch_bytes(b.peer_id, "payload/0", bytes_max=4 * MIB)
        assert data == b.served
        counts = a.swarm.data.counts
        assert counts["links_opened"] - opened_before <= 4, "four lanes, one of which was there, and one for the fetch"
        assert counts["links_reused"] >= 4
        async with asyncio.timeout(60):
            while a.peer_id not in b.moved or b.peer_id not in a.moved:
                await carried(a, b)


async def test_peer_that_says_hello_before_it_has_a_record_gets_data_connections_once_it_has_one(
    tmp_path: Path,
) -> None:
    """Its key comes with the record: who met it before knows by then where its data port is, and lets it in."""
    a, b = two(tmp_path)
    make_record, a.swarm.gossip.make_record = a.swarm.gossip.make_record, lambda: b""
    async with running(a, b):
        b.swarm.contacts.add_bootstrap(parse_address(a.swarm.addresses()[0]))
        await until(lambda: a.peer_id in b.contacts and b.peer_id in a.swarm.contacts.in_touch, "hellos")
        assert b.swarm.book.get(a.peer_id) is None
        a.swarm.gossip.make_record = make_record
        a.swarm.announce()
        await until(lambda: has_data(a, b) and has_data(b, a), "both data ports answer")
        await carried(a, b)
        await carried(b, a)


async def test_peer_that_is_met_when_all_places_are_taken_gets_data_connections_once_there_is_room(
    tmp_path: Path,
) -> None:
    """Who takes the places may be gone, and made its key for that: nobody who comes meanwhile is without for ever."""
    a, b = two(tmp_path)
    async with running(a, b):
        assert a.swarm.data is not None
        for peer in (PeerId(f"gone{number}") for number in range(KEYS_MAX)):
            a.swarm.data.listener.believe(peer, a.swarm.book.key_of(a.peer_id))
            a.swarm.data._routes[peer] = Route(peer, 1, b"", asyncio.Semaphore(1))
        await meet(a, b)
        assert b.peer_id not in {*a.swarm.data._routes, *a.swarm.data.listener._keys}
        a.swarm.data._room_at = 0.0  # a minute later
        await until(lambda: has_data(a, b) and has_data(b, a), "both data ports answer")
        await carried(a, b)
        await carried(b, a)


async def test_connection_on_which_an_offer_was_refused_carries_the_next_one(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a, b):
        await meet(a, b)
        await until(lambda: has_data(a, b), "data connections")
        for _ in range(2):  # by two, as long as nobody knows how fast the line is, then by one for each lane
            await carried(a, b)
        assert a.swarm.data is not None
        opened, b.is_busy = a.swarm.data.counts["links_opened"], True
        with pytest.raises(PeerError, match="busy"):
            await carried(a, b)
        b.is_busy = False
        await carried(a, b)
        assert a.swarm.data.counts["links_opened"] == opened


async def test_port_that_cannot_be_reached_leaves_payloads_to_p2pd_and_says_why(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a, b):
        port = free_port()
        b.swarm.gate.data_port = lambda: port  # as a firewall that lets nothing in
        await meet(a, b)
        await until(lambda: "port" in a.swarm.payloads_to(b.peer_id).reason, "a reason")
        await carried(a, b)
        assert not has_data(a, b)
        assert a.swarm.data is not None
        assert a.swarm.data.counts["links_opened"] == 0


async def test_port_that_falls_silent_later_is_given_up_in_favour_of_p2pd(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a, b):
        await meet(a, b)
        await until(lambda: has_data(a, b), "data connections")
        assert a.swarm.data is not None
        assert b.swarm.data is not None
        b.swarm.data.listener.drop(a.peer_id)
        await carried(a, b)
        assert not has_data(a, b)
        assert a.swarm.payloads_to(b.peer_id).reason


async def test_site_without_data_connections_is_served_by_p2pd(tmp_path: Path) -> None:
    a, b = two(tmp_path, data_connections=0)
    async with running(a, b):
        await meet(a, b)
        await carried(a, b)
        await carried(b, a)
        assert a.swarm.payloads_to(b.peer_id) == RouteView(False, "it offers no data port")
        assert b.swarm.payloads_to(a.peer_id) == RouteView(False, "data connections are off here")


async def test_strangers_at_the_data_port_get_nothing_and_are_counted(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    stranger, third = identity.create(tmp_path / "stranger.key"), identity.create(tmp_path / "third.key")
    async with running(a, b):
        await meet(a, b)
        await until(lambda: has_data(a, b), "data connections")
        assert b.swarm.data is not None
        port, key = b.swarm.data.port, decode_signed(b.swarm.book.data(b.peer_id)).public_key
        own = Credentials(stranger)
        context = own.client_context((own.anchor(b.peer_id, key),), PROTOCOL_BULK)

        assert await said_to(port, b"GET / HTTP/1.1\r\n\r\n") == b"", "garbage"
        assert await said_to(port, b"\x16\x03\x01\x02\x00\x01") == b"", "half a handshake"
        with pytest.raises(PeerError):
            link = await open_link("127.0.0.1", port, context, timeout_s=20)  # its side is done before ours has looked
            if await link.channel.read(1) == b"":
                raise PeerError("closed without a word")
        meant_another = own.client_context((own.anchor(third.peer_id, third.public_key_der),), PROTOCOL_BULK)
        with pytest.raises(PeerError, match=r"(?i)certificate"):
            await open_link("127.0.0.1", port, meant_another, timeout_s=20)
        await until(lambda: b.swarm.guard.bad_input()["data"]["bad_handshake"] >= 4, "all are counted")
        await carried(a, b)


async def test_crowd_at_the_data_port_is_bounded_and_keeps_nobody_from_payloads(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a, b):
        await meet(a, b)
        await until(lambda: has_data(a, b), "data connections")
        assert b.swarm.data is not None
        vestibule = b.swarm.data.listener.vestibule
        now = asyncio.get_running_loop().time()  # stands while they come, however long that takes here
        vestibule._of_known = Budget(lambda: now, each=EACH)  # a member came from this address
        crowd = [await asyncio.open_connection("127.0.0.1", b.swarm.data.port) for _ in range(CROWD)]
        await until(lambda: vestibule.counts["entered"] + vestibule.counts["over_budget"] >= CROWD, "all came")
        now += EACH.burst / EACH.per_s
        assert len(vestibule) <= PLACES_ADDRESS
        await carried(a, b)
        ended = [await reader.read(1) for reader, _ in crowd[: CROWD - 2 * PLACES_ADDRESS]]
        assert not any(ended)
        for _, writer in crowd:
            writer.close()
        assert b.swarm.guard.bad_input()["data"]["too_many_streams"] >= CROWD - EACH.burst


async def test_who_is_dropped_loses_its_connections_and_cannot_come_back(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a, b):
        await meet(a, b)
        await until(lambda: has_data(a, b), "data connections")
        assert a.swarm.data is not None
        assert b.swarm.data is not None
        b.swarm.data.drop(a.peer_id)
        failed = b.swarm.data.listener.counts["handshakes_failed"]
        route = a.swarm.data._routes[b.peer_id]
        route.end()
        assert await a.swarm.data.take(b.peer_id, PROTOCOL_BULK) is None
        counts = b.swarm.data.listener.counts
        await until(lambda: counts["handshakes_failed"] > failed, "b has seen it fail as well")
        assert not has_data(a, b)


async def said_to(port: int, data: bytes) -> bytes:
    """What a port answers to these bytes before it closes, without a TLS alert."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    try:
        answer = await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
    return b"" if answer[:1] == TLS_ALERT else answer


async def carried(a: Taker, b: Taker) -> None:
    """A payload of A is with B."""
    with memory(5 * MIB, seed=len(b.arrived)) as payload:
        header = await header_of(payload, segment=len(b.arrived))
        await a.swarm.send_segment(b.peer_id, dataclasses.replace(header, run_id=str(a.manifest.run_id)), payload)
        assert os.pread(b.fd, header.segment_bytes, 0) == os.pread(payload.fd, header.segment_bytes, 0)
