"""Node: p2pd in our own loop, its death and return, two DHTs healed into one, hints that cannot be forged."""

import asyncio
import dataclasses
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest
from hivemind.proto import dht_pb2

from dilocoxd.errors import ConfigError, PeerError, WorkerError
from dilocoxd.swarm.p2pd import node
from dilocoxd.swarm.p2pd.connections import ip_of
from dilocoxd.swarm.p2pd.fence import EACH
from dilocoxd.swarm.p2pd.node import DHTID, P2PHandlerError, PeerID
from dilocoxd.swarm.p2pd.settings import hold_ports
from dilocoxd.swarm.streams.budget import Budget
from dilocoxd.swarm.streams.streams import unix_ms
from tests.integration.swarm.sites import Site, dht_size, sites, start_site, until

pytestmark = pytest.mark.processes

ECHO = "/test/echo"


async def echo(_: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(5))
    await writer.drain()
    await reader.read(1)


async def ask_echo(asker: Site, other: Site) -> bytes:
    reader, writer = await asker.node.open_stream(other.peer_id, ECHO)
    try:
        writer.write(b"hello")
        return await reader.read(5)
    finally:
        writer.close()


async def test_p2pd_killed_is_recreated_with_same_id_port_and_handlers(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        await a.node.set_handler(ECHO, echo)
        addresses = await a.node.addresses()
        await b.meet(a)
        assert await ask_echo(b, a) == b"hello"
        os.kill(a.node.p2pd_pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            assert await a.node.wait_p2pd_death() == -signal.SIGKILL
        with pytest.raises(PeerError):
            await a.node.connections()
        await a.node.start()
        assert await a.node.addresses() == addresses
        await b.meet(a)
        assert await ask_echo(b, a) == b"hello"


async def test_peer_id_is_learned_from_a_bare_address(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        address = (await a.node.addresses())[0].split("/p2p/")[0]
        assert await b.node.ask_peer_id(address) == a.peer_id


async def test_dialling_an_address_where_somebody_else_lives_fails(tmp_path: Path) -> None:
    async with sites(tmp_path, 3) as (a, b, c):
        address = (await a.node.addresses())[0].split("/p2p/")[0]
        with pytest.raises(PeerError, match="peer id mismatch") as refused:
            await b.node.connect(c.peer_id, [address])
        assert len(str(refused.value).splitlines()) == 1, "a warning of the console had three lines, one cut off"


async def test_half_dead_address_is_given_up_in_time(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        server = await asyncio.start_server(lambda reader, writer: asyncio.Event().wait(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        started = asyncio.get_running_loop().time()
        with pytest.raises(PeerError):
            await b.node.connect(a.peer_id, [f"/ip4/127.0.0.1/tcp/{port}"], timeout_s=2)
        assert asyncio.get_running_loop().time() - started < 15
        server.close()


async def test_two_dhts_become_one_and_hints_travel(tmp_path: Path) -> None:
    async with sites(tmp_path, 4) as (a, b, c, d):
        for left, right in ((a, b), (c, d)):
            await left.meet(right)
            assert await left.node.merge_dht(right.peer_id)
        record = a.record()
        assert await a.node.publish_hint(a.peer_id, record, ttl_s=30)
        assert await d.node.find_hints() == []
        await c.meet(a)
        assert await c.node.merge_dht(a.peer_id)

        async def d_sees_a() -> bool:
            await a.node.publish_hint(a.peer_id, a.record(), ttl_s=30)
            return any(d.book.check(data, 2**53).peer == a.peer_id for data in await d.node.find_hints())

        await until(d_sees_a, "d finds the record that a published in the other DHT")


async def test_forged_foreign_and_huge_hints_are_refused_and_counted(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        await b.meet(a)
        assert await b.node.merge_dht(a.peer_id)
        await until(lambda: dht_size(a.node) == 1, "a knows b")
        store = b.node._dht.protocol.call_store
        key = DHTID.generate(source="test-0123456789abcdef")
        to_a, later = PeerID.from_base58(a.peer_id), unix_ms() / 1000 + 20
        record = b.record()
        for value, subkey in [
            (record, str(a.peer_id)),  # b's record in a's place
            (record[:-1] + bytes([record[-1] ^ 1]), str(b.peer_id)),  # wrong signature
            (bytes(20_000), str(b.peer_id)),
            ({"a": 1}, str(b.peer_id)),
        ]:
            assert await store(to_a, [key], [msgpack.packb(value)], later, [subkey]) == [False]
        assert await store(to_a, [DHTID.generate(source="warez")], [msgpack.packb(record)], later, ["x"]) == [False]
        assert await store(to_a, [key], [msgpack.packb(record)], later, [str(b.peer_id)]) == [True]
        assert sum(a.guard.bad_input()["dht"].values()) == 5
        assert await a.node.find_hints() == [record]


async def test_greedy_dht_requests_are_refused_before_they_cost_anything(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        now = time.monotonic()  # the clock stands: on a busy machine 60 requests take so long that all may be answered
        a.node._fence._budget = Budget(lambda: now, each=EACH)
        await b.meet(a)
        stub = b.node._dht.protocol.get_stub(PeerID.from_base58(a.peer_id))
        me = b.node._dht.protocol.node_info
        one = DHTID.generate().to_bytes()
        assert len((await stub.rpc_find(dht_pb2.FindRequest(keys=[one], peer=me), timeout=60)).results) == 1
        with pytest.raises(P2PHandlerError, match="100000 keys"):
            await stub.rpc_find(dht_pb2.FindRequest(keys=[one] * 100_000, peer=me), timeout=60)
        refused = [await is_answered(stub, me) for _ in range(60)].count(False)
        asked_before = 2
        assert refused == 60 - (EACH.burst - asked_before), "so many at once are answered"
        now += 1.0
        answered = [await is_answered(stub, me) for _ in range(6)]
        assert answered == [True] * int(EACH.per_s) + [False] * 2, "and so many a second"
        refused += 2
        assert a.guard.bad_input()["dht"] == {"too_large": 1, "busy": refused}


async def is_answered(stub: Any, me: Any) -> bool:
    try:
        await stub.rpc_ping(dht_pb2.PingRequest(peer=me), timeout=60)
    except P2PHandlerError:
        return False
    return True


async def test_connected_peer_is_known_by_the_address_that_it_talks_from(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        await b.meet(a)
        for here, there in ((a, b), (b, a)):
            found = await here.node.connections()
            assert {peer: [*map(ip_of, ends)] for peer, ends in found.items()} == {there.peer_id: ["127.0.0.1"]}


async def test_p2pd_that_freezes_while_it_starts_is_an_error_in_time_and_gives_the_port_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sites(tmp_path, 1) as (a,):
        monkeypatch.setattr(node, "START_SLACK_S", 0.5)
        a.node._settings = dataclasses.replace(a.node._settings, startup_timeout_s=8.0)  # it is frozen long before
        before = a.node.p2pd_pid

        async def freeze() -> int:
            while True:
                for child in psutil.Process().children():
                    if child.pid != before and "p2pd" in child.name():
                        child.suspend()
                        return child.pid
                await asyncio.sleep(0)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            frozen = group.create_task(freeze())
            with pytest.raises(WorkerError, match="did not start: no answer within"):
                await a.node.start()
        assert not a.node.is_running
        await until(lambda: not psutil.pid_exists(frozen.result()), "the end of the frozen p2pd")
        a.node._settings = dataclasses.replace(a.node._settings, startup_timeout_s=60.0)
        await a.node.start()
        assert a.node.is_running


async def test_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    async with sites(tmp_path, 1) as (a,):
        taken = (await a.node.addresses())[0].split("/p2p/")[0]
        with pytest.raises(ConfigError, match="cannot listen on"):
            await start_site(tmp_path / "second", listen=taken)


async def test_port_is_nobody_elses_while_p2pd_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = node.Node._create_in_time, []

    async def after_a_look(self: node.Node, listen: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError, match="cannot listen on"), hold_ports(listen):
            pass
        asked.append(listen)
        await create(self, listen)

    monkeypatch.setattr(node.Node, "_create_in_time", after_a_look)
    async with sites(tmp_path, 1) as (a,):
        assert (await a.node.addresses())[0].startswith(asked[0][0] + "/")


async def test_shutdown_leaves_no_process_and_no_socket() -> None:
    with tempfile.TemporaryDirectory(prefix="n") as folder:  # short: sockets in long paths go elsewhere
        async with sites(Path(folder), 1) as (a,):
            pid, sockets = a.node.p2pd_pid, Path(folder) / "site0" / "sockets"
            assert len(list(sockets.glob("p2pd-*.sock"))) == 1
            assert sockets.stat().st_mode & 0o777 == 0o700
            await a.node.shutdown()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert list(sockets.iterdir()) == []


async def test_sockets_of_a_long_path_go_to_a_private_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("t" * 60)  # as on clusters, where TMPDIR names user and job
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with sites(tmp_path / ("x" * 100), 2) as (a, b):
        await b.meet(a)
        assert a.node._temporary_dir is not None
        folder = Path(a.node._temporary_dir.name)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not list(long.iterdir())
    assert not folder.exists()
