"""Sites in processes of their own: SIGKILL and SIGSTOP in mid-transfer, orphans, resident memory."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.wire.messages import SegmentHeader
from tests.integration.swarm.child import RUN_SECTION
from tests.integration.swarm.members import Member, a_manifest, running
from tests.integration.swarm.sites import memory, until

pytestmark = pytest.mark.processes
MIB = 1 << 20
DAEMON_MIB_MAX = 450
"""Issue 2: daemon and p2pd together, whatever the size of the model."""


class Process:
    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address
        self.peer_id = PeerId(address.split("/p2p/")[1])

    @property
    def tree(self) -> list[psutil.Process]:
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def resident_mib(self) -> float:
        return sum(process.memory_info().rss for process in self.tree) / MIB

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(120):
            return (await self.process.stdout.readline()).decode().strip()


@contextlib.asynccontextmanager
async def child(folder: Path, num_bytes: int, *bootstrap: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.swarm.child", str(folder), str(num_bytes), *bootstrap,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder.parent / f"{folder.name}.err").open("wb"),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Process(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.stdin.close()
        if process.returncode is None:
            async with asyncio.timeout(60):
                await process.wait()


def member(folder: Path, *bootstrap: str) -> Member:
    return Member(folder, a_manifest().model_copy(update={"run": RUN_SECTION}), bootstrap=bootstrap)


async def header_for(member: Member, num_bytes: int, sha256: bytes) -> SegmentHeader:
    return SegmentHeader(member.manifest.run_id, 0, 0, 0, 0, 0, 0, num_bytes, 0, num_bytes, sha256, bytes(32), ())  # type: ignore[arg-type]


async def test_site_killed_in_mid_transfer_is_a_failure_and_leaves_no_orphan(tmp_path: Path) -> None:
    size = 64 * MIB
    async with child(tmp_path / "b", size) as b, running(a := member(tmp_path / "a", b.address)):
        await until(lambda: a.swarm.payloads_to(b.peer_id).is_data, "a data connection")
        tree, num_sent = b.tree, 0

        async def kill_half_way(to: PeerId, num_bytes: int) -> None:
            nonlocal num_sent
            num_sent += 1
            if num_sent == 128:
                b.process.send_signal(signal.SIGKILL)

        with memory(size, seed=7) as source:
            header = await header_for(a, size, await source.sha256())
            with pytest.raises(PeerError):
                await BulkSender(a.swarm.gate, kill_half_way).send_segment(b.peer_id, header, source, attempts=2)
        assert await b.line() == "", "nothing was confirmed"
        await until(lambda: b.peer_id in a.gone, "its host has said that nobody is there")
        await until(lambda: not any(process.is_running() for process in tree[1:]), "p2pd is gone too")


async def test_site_that_leaves_is_quick_and_quiet(tmp_path: Path) -> None:
    async with running(a := member(tmp_path / "a")), child(tmp_path / "b", 1, a.swarm.join_address()) as b:
        await until(lambda: b.peer_id in a.swarm.contacts.in_touch, "contact")
        tree = b.tree
        assert b.process.stdin is not None
        b.process.stdin.close()
        async with asyncio.timeout(20):
            assert await b.process.wait() == 0
        assert not any(process.is_running() for process in tree)
    assert "Traceback" not in (tmp_path / "b.err").read_text()


async def test_frozen_site_is_given_up_and_served_again_when_it_wakes(tmp_path: Path) -> None:
    size = 32 * MIB
    async with child(tmp_path / "b", size) as b, running(a := member(tmp_path / "a", b.address)):
        await until(lambda: b.peer_id in a.swarm.contacts.in_touch, "contact")
        a.swarm.gate.progress_timeout_s = 1.0
        with memory(size, seed=8) as source:
            header = await header_for(a, size, await source.sha256())
            b.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(PeerError):
                    await BulkSender(a.swarm.gate).send_segment(b.peer_id, header, source, attempts=1)
                assert not await a.swarm.probe(b.peer_id, timeout_s=1.0)
                assert not a.gone and not a.silent, "its kernel answers for it"
            finally:
                b.process.send_signal(signal.SIGCONT)
            a.swarm.gate.progress_timeout_s = 30.0
            await BulkSender(a.swarm.gate).send_segment(b.peer_id, header, source, attempts=10)
        assert await b.line() == "confirmed 0"


@pytest.mark.slow
async def test_resident_memory_of_daemon_and_p2pd_stays_below_the_limit(tmp_path: Path) -> None:
    size = 400 * MIB
    async with child(tmp_path / "b", size) as b, running(a := member(tmp_path / "a", b.address)):
        await until(lambda: b.peer_id in a.swarm.contacts.in_touch, "contact")
        idle = b.resident_mib()
        with memory(size, seed=9) as source:
            header = await header_for(a, size, await source.sha256())
            await BulkSender(a.swarm.gate).send_segment(b.peer_id, header, source)
        assert await b.line() == "confirmed 0"
        after = b.resident_mib()
    print(f"resident: idle {idle:.0f} MiB, after 400 MiB received {after:.0f} MiB")
    assert after < DAEMON_MIB_MAX / 2, "the HTTP API and the machines need the rest"
    assert after - idle < 64
