"""A place for an outer part on a node against what a head, a stranger in its stead, and a full disk do to it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dilocoxd import __version__
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.node.slot import PartSlot, SealedStream
from dilocoxd.daemon.node.slot_world import SlotWorld
from dilocoxd.daemon.workers.fork_server import ForkServer, ForkServerSettings
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.outer_worker import first_error
from dilocoxd.daemon.workers.supervisor import Launch
from dilocoxd.errors import ConfigError, WorkerError
from dilocoxd.ipc.keep_alive import RestartBudget
from dilocoxd.ipc.sealed import FRONT_BYTES, Seal, greeting, new_salt, salt_of
from dilocoxd.wire.local.node import (
    FetchBytes,
    Fetched,
    HeadHello,
    KeepFiles,
    MakeFile,
    NodeHello,
    PartEnded,
    PartFolder,
    StartPart,
)
from tests.harness.running.run_directories import free_port

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
START = StartPart("0123456789abcdef.part1of2", "this start", True, "1/2", b"", b"")
WAIT_S = 60.0
Head = Callable[[SealedStream], Awaitable[None]]


class QuietPart(ForkServer):
    """Starts parts that neither come nor end before they are told to."""

    def __init__(self, directory: Path) -> None:
        def launch(generation: int) -> Launch:
            return Launch(("false",), {}, directory / "log", f"test-places-{generation}", "")

        super().__init__(ForkServerSettings(launch, (), RestartBudget(0, 1.0), 1.0), self)
        self.exits: list[asyncio.Future[int]] = []

    async def start(self, launch: ForkLaunch) -> Workers:
        self.exits.append(asyncio.get_running_loop().create_future())
        return Workers(launch.mark, (0,), (self.exits[-1],), lambda told: None)

    def fork_server_warm(self) -> None:
        """Never."""

    def fork_server_lost(self, reason: str) -> None:
        """Never."""


class Meetings:
    """A head that has this key at the first connection, that one at the second; `served` has those that it let in."""

    def __init__(self, directory: Path, keys: list[bytes], then: Head, *, version: str = __version__) -> None:
        self.told: list[str] = []
        self.let_in: asyncio.Queue[NodeHello] = asyncio.Queue()
        self.parts = QuietPart(directory)
        self._directory, self._keys, self._then, self._version = directory, keys, then, version
        (directory / "sock").touch()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[PartSlot]:
        """That comes to this head."""
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        slot = self.place(server.sockets[0].getsockname()[1])
        async with server, asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
            running = group.create_task(slot.run(), name="slot")
            yield slot
            running.cancel()
        slot.close()

    def place(self, port: int, host: str = "127.0.0.1") -> PartSlot:
        """That comes to whoever listens there."""
        world = SlotWorld(
            host, port, KEY, self._directory, self.parts, "test-places", self._directory / "sock",
            self.told.append,
        )  # fmt: skip
        return PartSlot(world, 0)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key, salt = self._keys.pop(0) if self._keys else KEY, new_salt()
        with contextlib.suppress(OSError, EOFError), contextlib.closing(writer):
            seal = Seal(key, salt + salt_of(await reader.readexactly(FRONT_BYTES)), is_head=True)
            stream = SealedStream(reader, writer, seal)
            writer.write(greeting(salt))
            await stream.send(HeadHello(self._version))
            self.let_in.put_nowait(await stream.receive())
            await self._then(stream)


async def nothing(stream: SealedStream) -> None:
    """The head goes away again."""


async def test_stranger_between_two_meetings_does_not_end_a_node(tmp_path: Path) -> None:
    head = Meetings(tmp_path, [KEY, OTHER_KEY, KEY], nothing)
    async with head.slot():
        await head.let_in.get()
        await head.let_in.get()
    assert any("has another node key than before" in text for text in head.told)


async def test_reason_of_a_refusal_is_told_once_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a door where as many wait as may."""
    monkeypatch.setattr("dilocoxd.daemon.node.slot.RETRY_S", 0.01)
    monkeypatch.setattr("dilocoxd.daemon.head.door.WAITING_MAX", 0)
    door = NodeDoor("127.0.0.1", free_port(), KEY, "this start")
    door.listen()
    head = Meetings(tmp_path, [], nothing)
    async with asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
        tasks = [group.create_task(work) for work in (door.serve(), head.place(door.address[1]).run())]
        while door.refused.count < 3:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
    (told,) = head.told
    assert told.startswith("part place 0: "), "it has places of two kinds, which are numbered apart"
    assert told.endswith(
        "(it refuses this place: 0 places of nodes wait there, as many as may; start nodes with fewer)"
    )


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "Connection refused"), ("head.invalid", "Name or service not known")]
)
async def test_head_that_is_not_there_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, why: str
) -> None:
    """A node said `[Errno 111] Connect call failed ('10.0.0.10', 31340)`."""
    known = socket.gaierror(socket.EAI_NONAME, why)

    def resolve(*arguments: Any, **more: Any) -> Any:
        raise known

    if host != "127.0.0.1":
        monkeypatch.setattr(socket, "getaddrinfo", resolve)  # no test asks the internet
    head, port = Meetings(tmp_path, [], nothing), free_port()
    place = head.place(port, host)
    async with asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
        running = group.create_task(place.run())
        while not head.told:
            await asyncio.sleep(0.01)
        running.cancel()
    assert head.told == [f"part place 0: no connection to the head at {host}:{port} ({why})"]


async def test_head_of_another_version_ends_the_node_with_one_sentence(tmp_path: Path) -> None:
    head = Meetings(tmp_path, [], nothing, version="0.0.9")
    with pytest.raises(ExceptionGroup) as ended:
        async with head.slot():
            await asyncio.Event().wait()
    error = first_error(ended.value)
    assert isinstance(error, ConfigError) and error.exit_code == 78
    assert f"the head runs dilocoxd 0.0.9, this node {__version__}; install the same version" in str(error)


async def test_what_is_no_head_is_told(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n")
            await reader.read()

    head = Meetings(tmp_path, [], nothing)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
        running = group.create_task(head.place(server.sockets[0].getsockname()[1]).run())
        while not head.told:
            await asyncio.sleep(0.01)
        running.cancel()
    assert "what answers there is no head" in head.told[0]


async def test_note_that_cannot_be_written_is_told_to_the_head_and_ends_no_node(tmp_path: Path) -> None:
    ended: list[PartEnded] = []

    async def start(stream: SealedStream) -> None:
        await stream.send(START)
        ended.append(await stream.receive())

    head = Meetings(tmp_path, [], start)
    async with head.slot():
        (tmp_path / "slot-0").mkdir()
        await head.let_in.get()
        await head.let_in.get()
    assert "cannot note what it runs" in ended[0].reason


async def test_trouble_with_a_file_is_told_as_what_it_is(tmp_path: Path) -> None:
    ended: asyncio.Queue[PartEnded] = asyncio.Queue()

    async def spoil(stream: SealedStream) -> None:
        await stream.send(START)
        assert isinstance(await stream.receive(), PartFolder)
        await stream.send(MakeFile("run.toml/below-a-file", 1))
        ended.put_nowait(await stream.receive())
        head.parts.exits[-1].set_result(0)
        await stream.receive()

    head = Meetings(tmp_path, [], spoil)
    async with head.slot():
        reason = (await ended.get()).reason
        await head.let_in.get()
        await head.let_in.get()
    assert "the node cannot do what the head asks (MakeFile)" in reason
    assert any(reason in text for text in head.told)


async def test_only_the_files_that_the_head_names_are_kept(tmp_path: Path) -> None:
    left: asyncio.Queue[set[str]] = asyncio.Queue()

    async def choose(stream: SealedStream) -> None:
        await stream.send(START)
        folder = await stream.receive()
        assert isinstance(folder, PartFolder)
        for name in ("feedback-1", "feedback-2", "other"):
            await stream.send(MakeFile(name, 1))
        await stream.send(KeepFiles("feedback-", ("feedback-2",)))
        await stream.send(FetchBytes(1, True, "feedback-1", 0, 1))
        answer = await stream.receive()
        assert isinstance(answer, Fetched) and "cannot read it" in answer.problem
        left.put_nowait({path.name for path in Path(folder.path).iterdir()})
        head.parts.exits[-1].set_result(0)
        await stream.receive()

    head = Meetings(tmp_path, [], choose)
    async with head.slot():
        assert await left.get() == {"run.toml", "site.toml", "feedback-2", "other"}


async def test_node_whose_folder_was_emptied_ends_and_fails_no_worker(tmp_path: Path) -> None:
    async def start(stream: SealedStream) -> None:
        (tmp_path / "sock").unlink()
        await stream.send(START)
        await stream.receive()

    head = Meetings(tmp_path, [], start)
    with pytest.raises(ExceptionGroup) as ended:
        async with head.slot():
            await asyncio.Event().wait()
    error = first_error(ended.value)
    assert isinstance(error, WorkerError) and f"{tmp_path / 'sock'} is gone" in str(error)
    assert not head.parts.exits, "what could not reach it would count as a worker that fails"
