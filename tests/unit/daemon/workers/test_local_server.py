"""Local socket, daemon's end, against the real worker's end: order, descriptors, what workers can do wrong."""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dilocoxd.daemon.workers import local_server
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.local_server import Connection, LocalServer
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ipc.client import DaemonConnection as Worker, DaemonGone
from dilocoxd.wire.local import (
    buffers as local_buffers,
    outer_worker as local,
    registry,
    trainer as local_trainer,
    worker as local_worker,
)

WAIT_S = 120.0
HELLO = local_worker.WorkerHello("outer", os.getpid(), 1, 0, 1)


class Owner:
    """Keeps what it hears."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_message(self, message: Any) -> None:
        if isinstance(message, local_worker.Stop):
            raise WireError("unknown_message", "workers do not order us to stop")
        self.heard.put_nowait(message)

    def on_ended(self, reason: str) -> None:
        self.ended.set_result(reason)


class Site:
    """A server that admits generation 1."""

    def __init__(self, folder: Path) -> None:
        self.owners: asyncio.Queue[Owner] = asyncio.Queue()
        self.server = LocalServer(folder / "sock", self._admit)

    def _admit(self, hello: local_worker.WorkerHello, connection: Connection) -> Owner | None:
        if hello.generation != 1:
            return None
        owner = Owner(connection)
        self.owners.put_nowait(owner)
        return owner

    async def join(self, hello: local_worker.WorkerHello = HELLO) -> tuple[Worker, Owner]:
        worker = await asyncio.to_thread(Worker, str(self.server.path))
        worker.send(hello)
        return worker, await self.owners.get()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Site]:
    site = Site(folder)
    site.server.listen()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(site.server.serve())
        async with asyncio.timeout(WAIT_S):
            yield site
        task.cancel()


def run_on_uvloop(scenario: Callable[[Path], Awaitable[None]], folder: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario(folder))  # type: ignore[arg-type]


async def exchange(folder: Path) -> None:
    buffers = Buffers()
    buffers.provide([local_buffers.Buffer(f"b{i}", 4096 + i) for i in range(10)])
    async with running(folder) as site:
        assert stat.S_IMODE(site.server.path.stat().st_mode) == 0o600
        worker, owner = await site.join()
        names = tuple(f"b{i}" for i in range(10))
        descriptors, sizes = buffers.descriptors(names)
        buffers.write("b9", 0, b"nine")
        for _ in range(3):
            owner.connection.send(local_trainer.Pause())
        owner.connection.send(local_worker.Attach(names, tuple(sizes)), descriptors)
        owner.connection.send(local_trainer.Resume())
        received = [await asyncio.to_thread(worker.receive, WAIT_S) for _ in range(5)]
        assert [type(m).__name__ for m in received] == ["Pause", "Pause", "Pause", "Attach", "Resume"]
        assert worker.buffers["b9"][:4] == b"nine" and len(worker.buffers["b9"]) == 4105
        for number in range(100):
            worker.send(local_worker.WorkerAlive("x", number))
        assert [(await owner.heard.get()).per_mille for _ in range(100)] == list(range(100))
        worker.close()
        assert await owner.ended == "it closed its socket"
    buffers.close()


def test_messages_and_descriptors_arrive_in_order_on_uvloop(tmp_path: Path) -> None:
    run_on_uvloop(exchange, tmp_path)


async def test_messages_and_descriptors_arrive_in_order_on_asyncio(tmp_path: Path) -> None:
    await exchange(tmp_path)


async def test_worker_learns_at_once_that_the_daemon_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        worker, owner = await site.join()
    assert await owner.ended == "the daemon stops"
    with pytest.raises(DaemonGone):
        worker.receive(WAIT_S)
    assert not site.server.path.exists()


GARBAGE = {
    "oversized": (struct.pack("<I", 1 << 31), "too_large"),
    "not msgpack": (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "malformed"),
    "unknown number": (struct.pack("<I", 3) + b"\x91\xcc\xf0", "unknown_message"),
    "wrong direction": (struct.pack("<I", 2) + b"\x91\x0a", "workers do not order us"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_bad_input_ends_the_connection_with_a_reason(tmp_path: Path, name: str) -> None:
    data, reason = GARBAGE[name]
    async with running(tmp_path) as site:
        worker, owner = await site.join()
        sock = socket.socket(fileno=os.dup(worker.fileno()))
        sock.sendall(data)
        sock.close()
        assert reason in await owner.ended
        other, _owner = await site.join()
        other.close()
        worker.close()


STRANGERS = {
    "says something else first": local_worker.WorkerAlive("x", 1),
    "lies about its pid": local_worker.WorkerHello("outer", 1, 1, 0, 1),
    "belongs to another generation": local_worker.WorkerHello("outer", os.getpid(), 2, 0, 1),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_stranger_is_refused(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as site:
        worker = await asyncio.to_thread(Worker, str(site.server.path))
        worker.send(STRANGERS[name])
        with pytest.raises(DaemonGone):
            await asyncio.to_thread(worker.receive, WAIT_S)
        assert site.server.refused == 1 and site.owners.empty()


async def test_worker_that_says_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "HELLO_TIMEOUT_S", 0.05)
    async with running(tmp_path) as site:
        worker = await asyncio.to_thread(Worker, str(site.server.path))
        with pytest.raises(DaemonGone):
            await asyncio.to_thread(worker.receive, WAIT_S)


async def test_worker_that_does_not_read_is_ended_and_sending_never_blocks(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        worker, owner = await site.join()
        big = local.WriteSnapshot(1, "x" * 4000)
        while not owner.ended.done():
            for _ in range(100):
                owner.connection.send(big)
            await asyncio.sleep(0)
        assert await owner.ended
        worker.close()


async def test_message_in_many_pieces_is_put_together(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        worker, owner = await site.join()
        body = registry.LOCAL_MESSAGES.encode(local_worker.WorkerAlive("pieces", 7))
        for byte in struct.pack("<I", len(body)) + body:
            os.write(worker.fileno(), bytes([byte]))
            await asyncio.sleep(0)
        assert await owner.heard.get() == local_worker.WorkerAlive("pieces", 7)
        worker.close()


def test_socket_path_that_the_kernel_would_cut_is_a_clear_error(tmp_path: Path) -> None:
    server = LocalServer(tmp_path / ("x" * 120) / "sock", lambda _hello, _connection: None)
    with pytest.raises(ConfigError, match="shorter run directory"):
        server.listen()
    missing = LocalServer(tmp_path / "missing" / "sock", lambda _hello, _connection: None)
    with pytest.raises(ConfigError, match="cannot create the local socket"):
        missing.listen()
