"""Strangers at the data port of a real daemon: refused, counted, in bounded memory, while rounds go on. S11, I12."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.links import open_link
from dilocoxd.swarm.discovery.identity import create, load
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits, resident_mib
from tests.harness.running.run_directories import OPEN, found_run, free_port, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0
CROWD = 500
GROWTH_MIB = 40.0
DATA = ("--set", "network.data_connections=8")
HALF_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(20)
"""The beginning of a ClientHello that never ends."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SiteProcess, SiteProcess, int]]:
    """Two sites that send payloads to each other by data connections, and the data port of the first."""
    folder, port = tmp_path_factory.mktemp("data"), free_port()
    site = found_run(folder, "a", *OPEN, "--set", f"network.data_port={port}", *DATA)
    site.cold = True  # its memory is measured
    with sites(site):
        site.start_without_model(1.0)
        site.wait_height(1, PATIENCE_S)
        other = join_run(folder, "b", site, *DATA)
        with sites(other):
            other.start_without_model(1.0)
            other.wait_height(1, PATIENCE_S)
            for one in (site, other):
                wait_until(lambda one=one: with_data(one) == 1, "data connections", PATIENCE_S, one.describe)  # type: ignore[misc]
            yield site, other, port
            for one in (site, other):
                wait_until(lambda one=one: with_data(one) == 1, "data connections", PATIENCE_S, one.describe)  # type: ignore[misc]
            assert_same_bits(site, other)


def with_data(site: SiteProcess) -> int:
    return int(site.status().get("peers", {}).get("with_data", 0))


def counted(site: SiteProcess, code: str) -> int:
    return int(site.status().get("bad_input", {}).get("data", {}).get(code, 0))


async def throw(port: int, data: bytes) -> None:
    """These bytes, and no more until the other side ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await reader.read()
    except ConnectionError:
        return
    finally:
        writer.close()


def test_garbage_and_half_handshakes_are_ended_and_counted(pair: tuple[SiteProcess, SiteProcess, int]) -> None:
    site, _, port = pair
    before = counted(site, "bad_handshake")

    async def attack() -> None:
        async with asyncio.TaskGroup() as group:
            for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(70_000), HALF_HELLO, b"") * 3:
                group.create_task(throw(port, data), name="garbage")

    asyncio.run(attack())
    wait_until(lambda: counted(site, "bad_handshake") >= before + 12, "all counted", PATIENCE_S, site.describe)
    assert_rounds_go_on(site)


def test_foreign_identity_does_not_get_through_the_handshake(
    tmp_path: Path, pair: tuple[SiteProcess, SiteProcess, int]
) -> None:
    site, _, port = pair
    victim, before = load(RunDir(site.run_dir).path / "identity.key"), counted(site, "bad_handshake")
    credentials = Credentials(create(tmp_path / "stranger.key"))
    anchor = credentials.anchor(PeerId(victim.peer_id), victim.public_key_der)
    context = credentials.client_context((anchor,), PROTOCOL_BULK)

    async def attack() -> bytes:
        try:
            link = await open_link("127.0.0.1", port, context, timeout_s=30)
            return await link.channel.read(1)
        except (PeerError, OSError):
            return b""

    assert asyncio.run(attack()) == b"", "not one byte for a stranger"
    wait_until(lambda: counted(site, "bad_handshake") > before, "counted", PATIENCE_S, site.describe)


def test_crowd_that_says_nothing_takes_little_memory(pair: tuple[SiteProcess, SiteProcess, int]) -> None:
    site, _, port = pair
    before = resident_mib(site)

    async def attack() -> None:
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CROWD)]
        await asyncio.to_thread(assert_rounds_go_on, site)
        assert resident_mib(site) - before < GROWTH_MIB
        for _, writer in crowd:
            writer.close()

    asyncio.run(attack())
    wait_until(lambda: counted(site, "too_many_streams"), "the crowd to be counted", PATIENCE_S, site.describe)
