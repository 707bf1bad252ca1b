"""Messages to the service manager: ready only after the API, status, watchdog only while every part makes progress."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.process.service_manager import BLOCK_VARIABLE, ProgressWatch, ServiceManager, status_line
from tests.harness.running.run_directories import free_port
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

STATUS = changed(
    FakeView(7).status(), state="training", losses__inner=3.25, peers__live=2, waiting_for="the others\nto arrive"
)
WAIT_S = 30.0


class Listener:
    """The service manager's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)

    async def next(self) -> dict[str, str]:
        async with asyncio.timeout(WAIT_S):
            data = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
        return dict(line.split("=", 1) for line in data.decode().splitlines())

    async def until(self, field: str) -> dict[str, str]:
        while True:
            message = await self.next()
            if field in message:
                return message

    def is_silent(self) -> bool:
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@contextlib.asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[Listener]:
    listener = Listener(folder / "notify")
    try:
        yield listener
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def running(manager: ServiceManager, address: tuple[str, int] | None, **beats: Any) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(manager.run(address, lambda: STATUS, beats))
        yield
        task.cancel()


async def test_ready_is_said_once_the_api_answers_and_not_before(tmp_path: Path) -> None:
    port = free_port()
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        is_asked.set()
        await may_answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    async with listening(tmp_path) as listener, running(manager, ("127.0.0.1", port)):
        assert listener.is_silent()
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await is_asked.wait()
        assert listener.is_silent(), "the port is open, but nothing was answered yet"
        may_answer.set()
        message = await listener.next()
        server.close()
    assert message["READY"] == "1"
    assert message["STATUS"] == "training, outer step 7, loss 3.250, 2 other sites live, waits for the others to arrive"


async def test_watchdog_is_fed_while_parts_move_and_no_longer_when_one_stands(tmp_path: Path) -> None:
    count, is_stuck = 0, False

    def beat() -> int:
        nonlocal count
        count += not is_stuck
        return count

    async with listening(tmp_path) as listener:
        manager = ServiceManager({"NOTIFY_SOCKET": listener.path, "WATCHDOG_USEC": "200000"})
        async with running(manager, None, driver=beat):
            for _ in range(5):
                assert (await listener.until("WATCHDOG"))["STATUS"].startswith("training")
            is_stuck = True
            while "WATCHDOG" in (message := await listener.next()):
                continue
            assert message["STATUS"] == "no progress of driver: the watchdog is not fed"
            is_stuck = False
            await listener.until("WATCHDOG")
            is_stuck = True
            manager.stopping("SIGTERM")
            assert (await listener.until("STOPPING"))["STATUS"] == "leaving: SIGTERM"
            for _ in range(5):
                assert await listener.next() == {"WATCHDOG": "1"}, "parts end while leaving; the loop alone counts"


async def test_hook_for_tests_stops_the_feeding(tmp_path: Path) -> None:
    hook = tmp_path / "block"
    environment = {"WATCHDOG_USEC": "200000", BLOCK_VARIABLE: str(hook)}
    async with listening(tmp_path) as listener:
        manager = ServiceManager({"NOTIFY_SOCKET": listener.path, **environment})
        async with running(manager, None):
            await listener.until("WATCHDOG")
            hook.write_text("supervisor\n")
            while "WATCHDOG" in await listener.next():
                continue
            assert "WATCHDOG" not in await listener.next()
            hook.unlink()
            await listener.until("WATCHDOG")


async def test_without_a_service_manager_nothing_happens(tmp_path: Path) -> None:
    await ServiceManager({}).run(("127.0.0.1", 1), lambda: STATUS, {})
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).send(READY="1")
    assert ServiceManager({"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}).watchdog_s == 0.0, "it watches another"


def test_a_part_that_does_not_run_yet_is_not_stuck() -> None:
    counts: dict[str, int | None] = {"a": None, "b": 1}
    watch = ProgressWatch({"a": lambda: counts["a"], "b": lambda: counts["b"]}, patience_s=5.0)
    assert watch.look(0.0) == ()
    assert watch.look(6.0) == ("b",)
    counts.update(a=1, b=2)
    assert watch.look(7.0) == ()
    assert watch.look(12.5) == ("a", "b")


@pytest.mark.parametrize("state", ["starting", "leaving"])
def test_status_line_without_a_loss(state: str) -> None:
    status = changed(STATUS, state=state, losses__inner=None, waiting_for="")
    assert status_line(status) == f"{state}, outer step 7, 2 other sites live"
