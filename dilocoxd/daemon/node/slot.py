"""A place on a node, for one outer part or one pipeline stage: a connection to the head, and behind it a life.

Where a connection ends so does the part; its buffers wait for the next one. A place that no part has needed yet has a
connection too, and waits at the head's door.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dilocoxd import __version__
from dilocoxd.daemon.node.part_life import PartLife
from dilocoxd.daemon.node.slot_world import SlotWorld
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.local_server import Connection, WorkerHandler
from dilocoxd.errors import ConfigError, StoreError, WireError, WorkerError, reason_of
from dilocoxd.ipc.process_tree import is_descendant
from dilocoxd.ipc.sealed import (
    FRONT_BYTES,
    LENGTH,
    LOOK_INTERVAL_S,
    Seal,
    SilenceLimit,
    end_when_silent,
    greeting,
    length_of,
    new_salt,
    salt_of,
)
from dilocoxd.site_names import name_of_host
from dilocoxd.store.durable import is_disk_full, write_file
from dilocoxd.wire.local.node import (
    PART_PLACE,
    HeadHello,
    NodeHello,
    NodeRefused,
    PartEnded,
    StartPart,
    StartStage,
    other_version,
)
from dilocoxd.wire.local.worker import WorkerHello

RETRY_S: Final = 1.0
WAITS_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 10.0
_SERVED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_START = re.compile(r"[A-Za-z0-9-]{0,200}")


class SealedStream:
    """A connection to the head; `send` from one task, `receive` from another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self._reader = reader
        self._writer = writer
        self._seal = seal

    async def send(self, message: Any) -> None:
        """Raises OSError."""
        self._writer.write(self._seal.frame(message))
        await self._writer.drain()

    async def receive(self) -> Any:
        """Raises OSError, EOFError, WireError."""
        front = await self._reader.readexactly(LENGTH.size)
        return self._seal.open(await self._reader.readexactly(length_of(front)))


class Slot(ABC):
    """`run` until cancelled."""

    kind: str
    """In words of the head (wire/local/node.py)."""
    what: str
    """The same for people."""

    def __init__(self, world: SlotWorld, number: int, note: str) -> None:
        self.number = number
        self._world = world
        self._note = world.directory / note
        self._served, self._ran_by = _read_note(self._note)
        self._incarnation = ""
        self._said = ""
        self._has_met = False
        """The head has shown our key once: what does not open later is no matter of files, and no reason to give up
        what is in memory here."""

    @abstractmethod
    def admit(self, hello: WorkerHello, connection: Connection) -> WorkerHandler | None:
        """The life that this process belongs to."""

    @abstractmethod
    async def _live(self, start: Any, stream: SealedStream, address: str) -> None:
        """Run what the head wants, until the connection ends. `address`: ours in the cluster. Raises WireError."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back."""

    async def run(self) -> None:
        """One connection after the other. Raises ConfigError when a head that was never met has another key, and
        when the head has another version, WorkerError when nothing that starts here could reach us."""
        while True:
            try:
                await self._one_connection()
            except (OSError, EOFError, TimeoutError, WireError) as error:
                self._tell(f"no connection to the head at {self._world.host}:{self._world.port} ({_why(error)})")
            await asyncio.sleep(RETRY_S)

    def _tell(self, text: str) -> None:
        """Each thing once, however often it is so."""
        if text != self._said:
            self._said = text
            self._world.tell(f"{self.kind} place {self.number}: {text}")

    async def _one_connection(self) -> None:
        world = self._world
        self._check_folder()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(world.host, world.port)
        try:
            with _ended_when_silent(writer, self._tell) as patience:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    stream = await self._greeted(reader, writer)
                start = await self._start(stream)
                if not isinstance(start, StartPart | StartStage) or not _SERVED.fullmatch(start.served):
                    raise WireError("unexpected_message", "the head did not say what to run")
                patience.limit_s = start.grace_ms / 1000 if isinstance(start, StartStage) else 0.0
                self._check_folder()
                await self._live(start, stream, str(_socket_of(writer).getsockname()[0]))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _start(self, stream: SealedStream) -> Any:
        """What the head sends to a place that has waited. Raises OSError, EOFError, WireError."""
        where = f"{self._world.host}:{self._world.port}"
        # One that is refused hears it at once, and has not waited.
        told = asyncio.get_running_loop().call_later(WAITS_S, self._tell, f"waits at {where} for {self.what}")
        try:
            start = await stream.receive()
        finally:
            told.cancel()
        if isinstance(start, NodeRefused) and start.is_final:
            raise ConfigError(f"cannot work for {where}: {start.reason}")
        if isinstance(start, NodeRefused):
            raise _NotLetInError(f"it refuses this place: {start.reason}")
        return start

    def _check_folder(self) -> None:
        """Somebody may have emptied it under us. What starts then fails, and the head would count that against its
        site, again and again; a node that ends is one that is missed. Raises WorkerError."""
        if not self._world.socket_path.exists():
            raise WorkerError(
                f"{self._world.socket_path} is gone: the folder was emptied or its disk lost while this node ran;"
                " start `dilocoxd node` again"
            )

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SealedStream:
        """Raises ConfigError, OSError, EOFError, WireError."""
        world, salt = self._world, new_salt()
        writer.write(greeting(salt))
        try:
            theirs = salt_of(await reader.readexactly(FRONT_BYTES))
        except WireError as error:
            raise _NotLetInError("what answers there is no head; look at HEAD, and at its cluster.port") from error
        stream = SealedStream(reader, writer, Seal(world.key, theirs + salt, is_head=False))
        try:
            hello = await stream.receive()
        except WireError as error:
            if error.code != "unauthentic":
                raise
            if self._has_met:
                raise _NotLetInError(
                    "it has another node key than before; copy cluster.key_file to this machine and start this node"
                    " again, unless somebody else answers there"
                ) from error
            raise ConfigError(
                f"the head at {world.host}:{world.port} has another node key; copy the file that its cluster.key_file"
                " names to this machine"
            ) from error
        self._has_met = True
        version = hello.version if isinstance(hello, HeadHello) else "something unknown"
        if version != __version__:
            told = other_version(of_head=version, of_node=__version__)
            raise ConfigError(f"cannot work for {world.host}:{world.port}: {told}; install the same version on both")
        name, home = name_of_host(socket.gethostname()), hashlib.sha256(bytes(world.directory)).hexdigest()[:16]
        lent, served, ran_by = world.lent, self._served, self._ran_by
        await stream.send(
            NodeHello(
                *(__version__, served, self._incarnation, name, self.kind, home, world.mark, ran_by),
                *(lent.num_parts, lent.num_stages, lent.memory_bytes, lent.gpu_bytes, lent.num_gpus, lent.torch),
                clock_ms=round(1000 * time.time()),
            )
        )
        return stream

    async def _noted(self, served: str, stream: SealedStream) -> bool:
        """Remember what runs here. False: a full disk is no reason to give up what is in memory here, and is told."""
        self._served, self._ran_by = served, self._world.mark
        try:
            await asyncio.to_thread(write_file, self._note, f"{served}\n{self._ran_by}\n".encode())
        except StoreError as error:
            await stream.send(PartEnded(f"the node cannot note what it runs: {error}"[:1000], is_disk_full(error)))
            self._tell(f"{self.what} cannot start: {error}")
            return False
        return True


class PartSlot(Slot):
    """For an outer part (part_life.py); its buffers wait for the next connection."""

    kind, what = PART_PLACE, "an outer part"

    def __init__(self, world: SlotWorld, number: int) -> None:
        super().__init__(world, number, f"slot-{number}")
        self._buffers = Buffers()
        self._generation = 0
        self._life: PartLife | None = None

    def admit(self, hello: WorkerHello, connection: Connection) -> PartLife | None:
        """See Slot."""
        life = self._life
        if life is None or hello.role != "outer" or not is_descendant(connection.pid, os.getpid()):
            return None
        return life if life.admit(hello, connection) else None

    def close(self) -> None:
        """See Slot."""
        self._buffers.close()

    async def _live(self, start: Any, stream: SealedStream, address: str) -> None:
        if not isinstance(start, StartPart):
            raise WireError("unexpected_message", "the head wants a stage where a part has its place")
        if start.is_new:
            self._buffers.close()
            self._buffers = Buffers()
        elif (start.served, start.incarnation) != (self._served, self._incarnation):
            raise WireError("unexpected_message", "the head wants buffers that are not here")
        self._incarnation = start.incarnation
        if not await self._noted(start.served, stream):
            return
        self._generation += 1
        # Generations of all places differ, so that a part that comes too late finds no other one's life.
        generation = self._generation * 1000 + self.number
        folder = self._world.directory / "parts" / start.served
        life = PartLife(self._world, start, stream, self._buffers, folder, generation)
        self._life = life
        which = f"outer part {start.part.partition('@')[0].replace('/', ' of ')}"
        self._tell(f"runs {which}")
        try:
            ended = await life.run()
        finally:
            self._life = None
        self._tell(f"{which} ended: {ended}")


@contextlib.contextmanager
def _ended_when_silent(writer: asyncio.StreamWriter, tell: Callable[[str], None]) -> Iterator[SilenceLimit]:
    """Its reader meets the end when the head's machine is silent."""
    loop, sock = asyncio.get_running_loop(), _socket_of(writer)
    next_look: asyncio.TimerHandle | None = None
    patience = SilenceLimit(sock)

    def look() -> None:
        nonlocal next_look
        with contextlib.suppress(OSError):  # it has ended
            was_tried, is_over = patience.is_tried, patience.look()
            if is_over:
                writer.transport.abort()
                return
            if patience.is_tried != was_tried:
                waits = f"is silent; what runs here waits for it, {patience.limit_s:g} s at most"
                tell(
                    f"the head's machine {waits if patience.is_tried else 'answers again, and what runs here goes on'}"
                )
            next_look = loop.call_later(LOOK_INTERVAL_S, look)

    end_when_silent(sock)
    look()
    try:
        yield patience
    finally:
        if next_look is not None:
            next_look.cancel()


def _read_note(path: Path) -> tuple[str, str]:
    """What ran at a place last, and which start of the node ran it; empty: nothing that could be read did."""
    try:
        served, ran_by, *_ = [*path.read_text("utf-8").split("\n"), "", ""]
    except (OSError, ValueError):
        return "", ""
    return (served, ran_by) if _SERVED.fullmatch(served) and _START.fullmatch(ran_by) else ("", "")


def _socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    found: socket.socket = writer.get_extra_info("socket")
    return found


class _NotLetInError(WireError):
    """`detail` is for people."""

    def __init__(self, detail: str) -> None:
        super().__init__("refused", detail)


def _why(error: Exception) -> str:
    if isinstance(error, _NotLetInError):
        return error.detail
    if isinstance(error, asyncio.IncompleteReadError):
        return "it closed the connection"
    return reason_of(error)
