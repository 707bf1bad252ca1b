"""Joining: over lists of dead, wrong and half-dead addresses; every failure names its stage, address and reason."""

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dilocoxd.config.loading import FILE_BYTES_MAX
from dilocoxd.config.manifest import manifest_from_canonical
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery import bootstrap
from dilocoxd.swarm.discovery.bootstrap import Access, Contact, JoinError, StageFailure, find_manifest, reach
from dilocoxd.swarm.p2pd.addresses import Address, parse_address
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.p2pd.peer_ids import fresh_peer_id
from dilocoxd.swarm.streams.streams import PROTOCOL_FETCH, PROTOCOL_HELLO, StreamGate
from tests.harness.running.run_directories import free_port
from tests.integration.swarm.members import Member, a_manifest, running
from tests.integration.swarm.sites import RUN, sites
from tests.remedies.refused.elsewhere import refused

pytestmark = pytest.mark.processes
NEWCOMERS = """
import os, sys
from dilocoxd.swarm.discovery.bootstrap import Access, fetch_manifest
import dilocoxd.swarm.p2pd.node
for _ in range(20):
    if os.fork() == 0:
        print(fetch_manifest(Access((sys.argv[1],), 60, print)).run_id, end=" ", flush=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Twenty that begin with what they all import: nothing has run yet."""


@contextlib.asynccontextmanager
async def tcp_server(answer: bytes | None) -> AsyncIterator[int]:
    """A port that accepts connections; says `answer`, or nothing for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_each_stage_says_what_failed_and_where(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b), tcp_server(None) as mute, tcp_server(b"SSH-2.0\r\n") as ssh:
        port = (await a.node.addresses())[0].split("/")[4]
        closed = free_port()
        for text, stage, reason in [
            ("no-such-host.invalid:31337", "resolve", "no-such-host.invalid"),
            (f"127.0.0.1:{closed}", "connect", f"127.0.0.1 port {closed} is closed"),
            (f"127.0.0.1:{mute}", "handshake", f"port {mute}, but it is no dilocoxd"),
            (f"127.0.0.1:{ssh}", "handshake", f"port {ssh}, but it is no dilocoxd"),
            (f"127.0.0.1:{port}/{fresh_peer_id()}", "handshake", f"another peer answers there: {a.peer_id}"),
            (f"127.0.0.1:{port}", "hello", "protocols not supported"),
        ]:
            with pytest.raises(StageFailure) as failed:
                await reach(b.node, b.gate, parse_address(text))
            assert failed.value.stage == stage, str(failed.value)
            assert reason in str(failed.value)
            assert text in str(failed.value)
            assert failed.value.is_in_vain == ("no-such-host" in reason or "another peer" in reason), (
                "who typed a wrong name or peer id waits no minute for it; a port may be opened meanwhile"
            )


async def test_manifest_is_found_through_a_list_with_one_good_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member(tmp_path / "a", a_manifest())
    told: list[str] = []
    async with running(a), tcp_server(None) as mute:
        good = a.swarm.join_address()
        addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{mute}", good]

        async def reach_for_ever(node: Node, gate: StreamGate, address: Address) -> Contact:
            try:
                return await reach(node, gate, address)
            except StageFailure:
                if address.port == mute:  # which is given up after ten seconds, if nobody else is there before
                    await asyncio.Event().wait()
                raise

        with monkeypatch.context() as patched:
            patched.setattr(bootstrap, "reach", reach_for_ever)
            async with asyncio.timeout(120):  # a half-dead address delays nobody
                manifest = await find_manifest(Access(tuple(addresses), 60, told.append))
        assert manifest == a.manifest
        bare = "127.0.0.1:" + good.split("/")[4]
        assert await find_manifest(Access((bare,), 60, told.append)) == a.manifest
    assert len(told) <= 1


async def test_error_names_every_address_that_was_tried_once(tmp_path: Path) -> None:
    lines: list[str] = []
    async with tcp_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web:
        closed = free_port()
        addresses = [f"127.0.0.1:{closed}", f"127.0.0.1:{web}", "no-such-host.invalid:1"]
        with pytest.raises(JoinError) as failed:
            await find_manifest(Access(tuple(addresses), 3, lines.append))
    head, *told, of_closed, of_name = str(failed.value).splitlines()
    assert re.fullmatch(r"no site of the run was reached \(tried (once|for [0-9]+ s)\):", head)
    starts = (
        f"  127.0.0.1 port {closed} is",
        f"  127.0.0.1 port {web}: something",
        "  the name 'no-such-host.invalid' is",
    )
    assert len(told) == len(starts) and all(map(str.startswith, told, starts)), told
    assert "how it is written" in of_name and "`dilocoxd status` on that machine" in of_closed
    assert len(lines) <= len(addresses), "each is told once while it is tried again"


async def test_another_site_at_the_address_is_told_at_once_with_what_to_do(tmp_path: Path) -> None:
    """It read `no peer could be reached within 0 s`, on a machine that a site had answered."""
    lines: list[str] = []
    async with sites(tmp_path, 1) as (a,):
        port = (await a.node.addresses())[0].split("/")[4]
        with pytest.raises(JoinError) as failed:
            await find_manifest(Access((f"/ip4/127.0.0.1/tcp/{port}/p2p/{fresh_peer_id()}",), 60, lines.append))
    assert str(failed.value).partition(" (tried")[0] == "no site of the run was reached"
    assert str(failed.value).partition("): ")[2] == (
        f"127.0.0.1 port {port}: another peer answers there: {a.peer_id}; the link is old, or its address belongs to"
        " another site by now: have `dilocoxd invite RUN_DIR` print a link of now on the machine that you want to join"
    )
    assert lines == []


@pytest.mark.parametrize("is_web", [True, False])
async def test_other_program_is_told_in_our_words_and_not_asked_again(tmp_path: Path, is_web: bool) -> None:
    """It read `failed to negotiate security protocol: message did not have trailing newline`, for a minute."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if is_web:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n" + b"x" * 100)
        writer.close()

    async with sites(tmp_path, 1) as (a,), await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StageFailure) as failed:
            await reach(a.node, a.gate, parse_address(f"127.0.0.1:{port}"))
    assert failed.value.reason == (
        f"something accepts connections on port {port}, but it is no dilocoxd: another program has that port, or a"
        " firewall or proxy answers where no site is; check address and port"
    )
    assert failed.value.is_final == is_web, "who merely closes may be a port forward to a site that starts"


async def test_peer_that_comes_up_late_is_found_by_a_later_round(tmp_path: Path) -> None:
    port = free_port()
    told: list[str] = []
    address = parse_address(f"127.0.0.1:{port}")
    async with asyncio.TaskGroup() as group:
        finding = group.create_task(find_manifest(Access((address.text,), 60, told.append)))
        while not told:
            await asyncio.sleep(0.02)
        a = Member(tmp_path / "a", a_manifest(), listen=(f"/ip4/127.0.0.1/tcp/{port}",))
        async with running(a):
            assert await finding == a.manifest
    assert len(told) >= 1
    assert "is closed" in told[0]


async def test_wrong_clock_is_its_own_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Member(tmp_path / "a", a_manifest())
    async with running(a), sites(tmp_path / "joiner", 1) as (b,):
        b.gate.run_id = None
        monkeypatch.setattr(bootstrap, "CLOCK_SKEW_MAX_S", -1.0)
        with pytest.raises(StageFailure, match="set both by NTP") as failed:
            await reach(b.node, b.gate, parse_address(a.swarm.join_address()))
        assert failed.value.stage == "clock"
        assert failed.value.is_final


async def test_wrong_run_is_final_and_says_which(tmp_path: Path) -> None:
    a = Member(tmp_path / "a", a_manifest())
    async with running(a), sites(tmp_path / "joiner", 1) as (b,):
        with pytest.raises(StageFailure, match=f"this peer is in run {a.manifest.run_id}") as failed:
            await reach(b.node, b.gate, parse_address(a.swarm.join_address()))
        assert failed.value.stage == "hello"
        assert failed.value.is_final
        assert b.gate.run_id == RUN


async def test_manifest_that_does_not_fit_its_run_is_refused(tmp_path: Path) -> None:
    a = Member(tmp_path / "a", a_manifest())
    a.manifest = a_manifest("somethingelse")
    async with running(a):
        with pytest.raises(ConfigError, match="somethingelse"):
            await find_manifest(Access((a.swarm.join_address(),), 30, lambda line: None))


@pytest.mark.parametrize(("words", "data"), [
    ("at most VALUE; ask another peer", b"x" * (FILE_BYTES_MAX + 1)),
    ("the manifest is not JSON; ask another peer", b"{"),
    ("the manifest is not a table; ask another peer", b"[]"),
])  # fmt: skip
def test_what_is_no_manifest_is_asked_of_another_peer(words: str, data: bytes) -> None:
    manifest = a_manifest()
    with refused("config/manifest.py", words):
        manifest_from_canonical(data, source="one peer")
    assert manifest_from_canonical(manifest.canonical_bytes(), source="another") == manifest


async def test_twenty_newcomers_in_processes_of_their_own_all_join(tmp_path: Path) -> None:
    a = Member(tmp_path / "a", a_manifest())
    async with running(a):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", NEWCOMERS, a.swarm.join_address(), stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out.decode() == f"{a.manifest.run_id} 0\n" * 20
        assert process.returncode == 0


async def test_who_is_greeted_while_a_peer_starts_may_ask_it_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p2pd is told of one protocol after the other, and serves those that it knows: a manifest was then not served."""
    told: list[str] = []
    real = Node._register

    async def register(node: Node, protocol: str) -> None:
        told.append(protocol)
        await real(node, protocol)

    monkeypatch.setattr(Node, "_register", register)
    async with running(Member(tmp_path / "a", a_manifest())):
        ours = [protocol for protocol in told if protocol.startswith("/dilocoxd/")]
        assert ours[-1] == PROTOCOL_HELLO and PROTOCOL_FETCH in ours
