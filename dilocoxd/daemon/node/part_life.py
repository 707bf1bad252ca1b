"""One life of an outer part on a node: its process, and what the head's end of the connection wants of this machine.

What the head sends is done in order, and always read: bytes that it asked for are sent by a task of their own. A part
that is killed at any moment finishes by its journal in the buffers, which are not this life's.
"""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Protocol

from dilocoxd.daemon.node.part_receipts import PartReceipts
from dilocoxd.daemon.node.part_uploads import PartUploads
from dilocoxd.daemon.node.slot_world import SlotWorld
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import OUTER_MODULE, ForkLaunch, Workers
from dilocoxd.daemon.workers.local_server import Connection
from dilocoxd.errors import StoreError, WireError, WorkerError
from dilocoxd.ipc.client import GENERATION_VARIABLE, PART_VARIABLE, RUN_DIRECTORY_VARIABLE, SOCKET_VARIABLE
from dilocoxd.store.durable import is_disk_full, store_error, write_all, write_file
from dilocoxd.wire.local import node
from dilocoxd.wire.local.outer_worker import Described
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach, WorkerHello

QUEUE_MAX: Final = 4096
STOP_GRACE_S: Final = 5.0


class Stream(Protocol):
    """The connection to the head (slot.py)."""

    async def send(self, message: Any) -> None: ...

    async def receive(self) -> Any: ...


class PartLife:
    """`run` once."""

    def __init__(
        self,
        world: SlotWorld,
        start: node.StartPart | node.StartStage,
        stream: Stream,
        buffers: Buffers,
        folder: Path,
        generation: int,
    ) -> None:
        self._world = world
        self._start = start
        self._stream = stream
        self._buffers = buffers
        self._folder = folder
        self._generation = generation
        self._queue: asyncio.Queue[Any] = asyncio.Queue(QUEUE_MAX)
        self._uploads = PartUploads(world.uplink, buffers, self._say)
        self._receipts = PartReceipts(world.uplink.inlet, buffers, self._say)
        self._connection: Connection | None = None
        self._workers: Workers | None = None
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # --- the part -----------------------------------------------------------------------------------------------------

    def admit(self, hello: WorkerHello, connection: Connection) -> bool:
        """It is the process that was forked for this life, and comes for the first time."""
        if hello.generation != self._generation or self._connection is not None:
            return False
        self._connection = connection
        return True

    def on_message(self, message: Any) -> None:
        """Of the part: to the head."""
        if isinstance(message, Described):
            try:
                self._buffers.provide(message.buffers)
            except WorkerError as error:
                self._end(str(error))
                return
        self._say(message)

    def _say(self, message: Any) -> None:
        self._put(node.FromPart(LOCAL_MESSAGES.encode(message)))

    def on_ended(self, reason: str) -> None:
        """Its exit status says more, and comes at once."""

    def _put(self, message: Any) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self._end("the head does not take what the part says")

    def _end(self, reason: str) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    # --- the life -----------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Why it ended. Nothing of it runs any more then. Raises nothing but cancellation."""
        try:
            await asyncio.to_thread(self._prepare)
            await self._stream.send(node.PartFolder(str(self._folder)))
            workers = self._workers = await self._world.fork_server.start(self._launch())
        except (OSError, StoreError, WorkerError) as error:
            with contextlib.suppress(OSError):
                told = f"the node cannot start it: {error}"[:1000]
                await self._stream.send(node.PartEnded(told, is_disk_full(error)))
            return str(error)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._take_all(), name="from the head"),
                    group.create_task(self._send_all(), name="to the head"),
                    group.create_task(self._watch(workers), name="exit of a part"),
                    group.create_task(self._uploads.run(), name="uploads of a part"),
                    group.create_task(self._receipts.run(), name="what comes to a part"),
                ]
                reason = await self._over
                for task in tasks:
                    task.cancel()
            return reason
        finally:
            self._receipts.leave()
            self._end_connections()
            await workers.end(grace_s=0.0)

    def _end_connections(self) -> None:
        if self._connection is not None:
            self._connection.end()

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file(self._folder / "run.toml", self._start.run_toml)
        write_file(self._folder / "site.toml", self._start.site_toml)

    def _launch(self) -> ForkLaunch:
        assert isinstance(self._start, node.StartPart)
        environment = {
            SOCKET_VARIABLE: str(self._world.socket_path),
            GENERATION_VARIABLE: str(self._generation),
            RUN_DIRECTORY_VARIABLE: str(self._folder),
            PART_VARIABLE: self._start.part,
        }
        log = self._world.directory / "logs" / "outer.log"
        header = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} outer part {self._start.part} of {self._start.served}"
        return ForkLaunch(OUTER_MODULE, (environment,), log, f"{self._world.mark}/part-{self._generation}", header)

    async def _watch(self, workers: Workers) -> None:
        told = await workers.first_exit()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                await self._queue.join()  # what it said before comes first
                await self._stream.send(node.PartEnded(told))
        self._end(told)

    async def _take_all(self) -> None:
        try:
            while True:
                message = await self._stream.receive()
                try:
                    self._take(message)
                except OSError as error:  # of our disk or memory: the head restarts the part, and shows why
                    told, is_full = self._cannot(message, error)
                    await self._stream.send(node.PartEnded(told, is_full))
                    self._end(told)
                    return
        except (EOFError, OSError):
            self._end("the head closed the connection")
        except (WireError, WorkerError, ValueError, KeyError, OverflowError) as error:
            self._end(f"what the head said makes no sense: {error}")

    def _cannot(self, message: Any, error: OSError) -> tuple[str, bool]:
        """In words, and whether it is for a full disk: buffers are memory."""
        is_file = isinstance(message, node.MakeFile | node.WriteFile)
        why = store_error("writing", self._path(message.name), error) if is_file else error
        return f"the node cannot do what the head asks ({type(message).__name__}): {why}"[:1000], is_disk_full(why)

    async def _send_all(self) -> None:
        try:
            while True:
                message = await self._queue.get()
                if isinstance(message, node.FetchBytes):
                    await self._send_bytes(message)
                elif isinstance(message, node.DumpStage):
                    await self._tell_of_hang()
                else:
                    await self._stream.send(message)
                self._queue.task_done()
        except OSError as error:
            self._end(f"the connection to the head failed: {error}")

    # --- what the head wants ------------------------------------------------------------------------------------------

    def _take(self, message: Any) -> None:
        match message:
            case node.ToPart(body, worker):
                told = LOCAL_MESSAGES.decode(body)
                if not (self._uploads.take(told) or self._receipts.take(told)):
                    self._tell(self._connection_of(worker), told)
            case node.WriteBuffer(name, offset, data):
                self._buffers.write(name, offset, data)
            case node.PunchBuffer(name):
                self._buffers.punch(name, 0, self._buffers.size(name))
            case node.FetchBytes() | node.DumpStage():
                self._put(message)
            case node.MakeFile(name, size):
                _make(self._path(name), size)
            case node.WriteFile(name, offset, data):
                _write(self._path(name), offset, data)
            case node.RemovePath(name):
                _remove(self._path(name))
            case node.KeepFiles(prefix, names):
                _keep(self._folder, prefix, names)
            case _:
                raise WireError("unexpected_message", f"{type(message).__name__} from the head")

    async def _tell_of_hang(self) -> None:
        """Only trainers are asked. Raises OSError of the connection."""

    def _connection_of(self, worker: int) -> Connection | None:
        return self._connection if worker == 0 else None

    def _tell(self, connection: Connection | None, message: Any) -> None:
        if connection is None:
            raise WireError("unexpected_message", "the part has not come yet")
        if not isinstance(message, Attach):
            connection.send(message)
            return
        descriptors, sizes = self._buffers.descriptors(message.names)
        connection.send(dataclasses.replace(message, sizes=tuple(sizes)), descriptors)

    def _path(self, name: str) -> Path:
        """Raises WireError for one outside the part's folder."""
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise WireError("malformed", f"{name!r} is no file of the part")
        return self._folder / name

    async def _send_bytes(self, wanted: node.FetchBytes) -> None:
        """Raises OSError of the connection."""
        for start in range(wanted.first, wanted.stop, node.PIECE_BYTES):
            size = min(node.PIECE_BYTES, wanted.stop - start)
            try:
                data = self._read(wanted, start, size)
            except (OSError, ValueError, KeyError, WireError) as error:
                await self._stream.send(
                    node.Fetched(wanted.number, start, b"", f"the node cannot read it: {error}"[:1000])
                )
                return
            await self._stream.send(node.Fetched(wanted.number, start, data))

    def _read(self, wanted: node.FetchBytes, start: int, size: int) -> bytes:
        if not wanted.is_file:
            return self._buffers.read(wanted.name, start, size)
        with self._path(wanted.name).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, start)
        if len(data) != size:
            raise ValueError(f"{wanted.name} is too short")
        return data


def _make(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(path)
    with path.open("xb") as file:
        file.truncate(size)


def _write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        write_all(file.fileno(), data, offset)


def _keep(folder: Path, prefix: str, names: Collection[str]) -> None:
    for path in folder.iterdir():
        if path.name.startswith(prefix) and path.name not in names:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
