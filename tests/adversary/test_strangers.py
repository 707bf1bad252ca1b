"""One connection and a fresh key: what a stranger gets of a site by its DHT, its relay and `reach`. D9, D10, L19."""

import asyncio
import json
import math
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hivemind.proto import dht_pb2

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.addresses import multiaddr_bytes
from dilocoxd.swarm.p2pd.node import DHTID, P2PHandlerError, PeerID
from dilocoxd.swarm.p2pd.relays import reserve
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits, spending
from tests.adversary.stranger import Stranger, stranger
from tests.harness.running.run_directories import OPEN, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0
FLOODS_MAX = 3
KEYS = 180_000
"""Of one DHT request: just below 4 MiB, the most that p2pd carries."""
DEAR_CPU_S = 0.35
"""Of the daemon. Working through so many keys takes 0.9 to 3 s; refusing them some hundredths."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SiteProcess, SiteProcess, SiteProcess]]:
    """Two honest sites of one run, and a site of another run without the mends."""
    folder = tmp_path_factory.mktemp("strangers")
    site = found_run(folder, "a", *OPEN)
    hollow = found_run(folder, "h", *OPEN, "--set", "network.relay_for_others=true")
    with sites(site, hollow):
        site.start_without_model(1.0)
        patched(hollow, "hole_dht", "hole_reach")
        site.wait_height(1, PATIENCE_S)
        other = join_run(folder, "b", site)
        with sites(other):
            other.start_without_model(1.0)
            other.wait_height(1, PATIENCE_S)
            hollow.wait_height(1, PATIENCE_S)
            yield site, other, hollow
            assert_same_bits(site, other)
            assert_rounds_go_on(site)


async def flood_dht(me: Stranger, peer: PeerId) -> str:
    """Ask for KEYS keys at once; why nobody answered, or an empty text."""
    protocol = me.node._dht.protocol
    keys = [DHTID.generate().to_bytes()] * KEYS
    try:
        await protocol.get_stub(PeerID.from_base58(peer)).rpc_find(
            dht_pb2.FindRequest(keys=keys, peer=protocol.node_info), timeout=60
        )
    except P2PHandlerError as refused:
        return str(refused)
    return ""


async def cpu_of_flood(me: Stranger, peer: PeerId, victim: SiteProcess, *, is_refused: bool) -> float:
    """Seconds of the daemon's processor, the least of a few: on a busy machine a flood takes long to arrive, and the
    rounds that the victim makes meanwhile cost as much."""
    least = math.inf
    for _ in range(FLOODS_MAX):
        with spending(victim) as spent:
            refusal = await flood_dht(me, peer)
        assert bool(refusal) is is_refused, refusal
        least = min(least, spent.cpu_s)
        if least < DEAR_CPU_S:
            break
    return least


async def test_dht_request_of_4_mib_costs_a_site_next_to_nothing(
    tmp_path: Path, world: tuple[SiteProcess, SiteProcess, SiteProcess]
) -> None:
    site, _, hollow = world
    spent = {}
    for victim in (site, hollow):
        async with stranger(tmp_path / victim.name, victim) as me:
            peer = await me.meet(victim)
            spent[victim.name] = await cpu_of_flood(me, peer, victim, is_refused=victim is site)
    assert spent["a"] < DEAR_CPU_S < spent["h"], spent


async def test_site_does_not_relay_for_strangers(
    tmp_path: Path, world: tuple[SiteProcess, SiteProcess, SiteProcess]
) -> None:
    site, _, hollow = world
    async with stranger(tmp_path / "s", site) as me:
        for victim in (site, hollow):
            peer = await me.meet(victim)
            place = str(victim.state()["join_address"])
            if victim is site:
                with pytest.raises(PeerError, match="refuses to relay"):
                    await reserve(me.node, peer, place)
            else:
                await reserve(me.node, peer, place)


async def scan(me: Stranger, victim: SiteProcess, ports: list[int]) -> list[bool]:
    """Have a site try ports of another address of its own machine."""
    addresses = tuple(f"/ip4/127.0.0.2/tcp/{port}" for port in ports)
    assert all(map(multiaddr_bytes, addresses))
    me.gate.run_id = victim.state()["run_id"]
    me.run_id = me.gate.run_id
    peer = await me.greet(victim, addresses=addresses)
    async with asyncio.timeout(30):
        rows = json.loads(await me.fetch.fetch_bytes(peer, "reach", bytes_max=8192))
    found = {row["address"]: row["ok"] for row in rows}  # and our own address, which was tried too
    return [found[address] for address in addresses]


async def test_nobody_scans_ports_through_a_site(
    tmp_path: Path, world: tuple[SiteProcess, SiteProcess, SiteProcess]
) -> None:
    site, _, hollow = world
    with socket.create_server(("127.0.0.2", 0)) as secret, socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))
        ports = [secret.getsockname()[1], closed.getsockname()[1]]
        async with stranger(tmp_path / "s", site) as me:
            assert await scan(me, site, ports) == [False, False]
            secret.setblocking(False)
            with pytest.raises(BlockingIOError):
                secret.accept()
            assert await scan(me, hollow, ports) == [True, False]
