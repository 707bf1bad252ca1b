"""The daemon's end of the local socket (docs/internals.md section 4): accepts workers, moves messages and descriptors.

Raw non-blocking sockets, because descriptors travel beside the bytes (SCM_RIGHTS). A worker is let in when it has our
uid, descends from a process that we started, and says WorkerHello first. Whatever breaks the rules ends the connection
with a reason; its owner kills the worker. Sending never blocks the caller: a worker that does not read what is sent
(more than SEND_QUEUE_MAX messages) is ended too.
"""

import array
import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from dilocoxd.errors import ConfigError, WireError, reason_of
from dilocoxd.ipc.accepting import accepted
from dilocoxd.ipc.socket_folder import SOCKET_PATH_BYTES_MAX
from dilocoxd.wire.local.frames import frame, take_message
from dilocoxd.wire.local.worker import WorkerHello

SEND_QUEUE_MAX: Final = 2048
HELLO_TIMEOUT_S: Final = 30.0
_BACKLOG = 64
_READ_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("3i")


class ConnectionEnded(Exception):
    """The worker is gone or broke a rule; the text says which."""


class WorkerHandler(Protocol):
    """Owner of one connection. Both methods are called on the loop and must not block."""

    def on_message(self, message: Any) -> None:
        """The next message. May raise WireError when it makes no sense from this worker."""
        ...

    def on_ended(self, reason: str) -> None:
        """Nothing more comes; called once."""
        ...


class Connection:
    """One worker. `send` queues, a task of the server writes."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self._socket = sock
        self._received = bytearray()
        self._queue: asyncio.Queue[tuple[bytes, tuple[int, ...]]] = asyncio.Queue(SEND_QUEUE_MAX)
        self._is_ended = False

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Queue one message and the descriptors that go with it; nothing happens on an ended connection."""
        if self._is_ended:
            return
        data = frame(message)
        try:
            self._queue.put_nowait((data, tuple(descriptors)))
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """Shut the socket: the reader of both sides wakes up with end of file."""
        self._is_ended = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def receive(self) -> Any:
        """Next message. Raises ConnectionEnded, WireError."""
        loop = asyncio.get_running_loop()
        while True:
            message = take_message(self._received)
            if message is not None:
                return message
            try:
                data = await loop.sock_recv(self._socket, _READ_BYTES)
            except OSError as error:
                raise ConnectionEnded(f"its socket failed: {error}") from error
            if not data:
                raise ConnectionEnded("it closed its socket")
            self._received += data

    async def write_all(self) -> None:
        """Write what is queued until the connection ends. Raises ConnectionEnded."""
        loop = asyncio.get_running_loop()
        while True:
            data, descriptors = await self._queue.get()
            try:
                if descriptors:
                    sent = await self._send_descriptors(data, descriptors)
                    data = data[sent:]
                await loop.sock_sendall(self._socket, data)
            except OSError as error:
                raise ConnectionEnded(f"its socket failed: {error}") from error

    async def _send_descriptors(self, data: bytes, descriptors: tuple[int, ...]) -> int:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while True:
            try:
                return self._socket.sendmsg([data], ancillary)
            except BlockingIOError:
                await _writable(self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._is_ended = True
        self._socket.close()


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(sock, wake)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


class LocalServer:
    """Listens on `path`. `admit(hello, connection)` returns the owner of the connection, or None to refuse it."""

    def __init__(self, path: Path, admit: Callable[[WorkerHello, Connection], WorkerHandler | None]) -> None:
        self.path = path
        self.refused = 0
        self._admit = admit
        self._socket: socket.socket | None = None

    def listen(self) -> None:
        """Bind with mode 0600. Raises ConfigError; a socket file that a dead daemon left is removed."""
        if len(os.fsencode(self.path)) > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"the local socket's path {self.path} is longer than {SOCKET_PATH_BYTES_MAX} bytes; use a shorter run"
                " directory"
            )
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        old_mask = os.umask(0o177)
        try:
            self.path.unlink(missing_ok=True)
            sock.bind(os.fspath(self.path))
        except OSError as error:
            sock.close()
            raise ConfigError(f"cannot create the local socket {self.path}: {reason_of(error)}") from error
        finally:
            os.umask(old_mask)
        sock.listen(_BACKLOG)
        self._socket = sock

    async def serve(self) -> None:
        """Accept until cancelled; `listen` comes first."""
        assert self._socket is not None
        try:
            async with asyncio.TaskGroup() as group:
                async for sock, _address in accepted(self._socket):
                    sock.setblocking(False)
                    group.create_task(self._serve_one(sock), name="local connection")
        finally:
            self._socket.close()
            with contextlib.suppress(OSError):
                self.path.unlink()

    async def _serve_one(self, sock: socket.socket) -> None:
        pid, uid, _gid = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )  # fmt: skip
        connection = Connection(sock, pid)
        try:
            handler = await self._greet(connection, uid)
            if handler is None:
                self.refused += 1
                return
            reason = "the daemon stops"
            try:
                reason = await self._run(connection, handler)
            finally:
                handler.on_ended(reason)
        finally:
            connection.close()

    async def _greet(self, connection: Connection, uid: int) -> WorkerHandler | None:
        if uid != os.getuid():
            return None
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await connection.receive()
        except (TimeoutError, ConnectionEnded, WireError):
            return None
        if not isinstance(hello, WorkerHello) or hello.pid != connection.pid:
            return None
        return self._admit(hello, connection)

    async def _run(self, connection: Connection, handler: WorkerHandler) -> str:
        """Read and write until one of both ends; why it ended."""
        reason = "it ended"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.write_all(), name=f"write to {connection.pid}")
                async for message in _messages(connection):
                    handler.on_message(message)
        except* ConnectionEnded as ended:
            reason = str(ended.exceptions[0])
        except* WireError as bad:
            reason = f"it sent something that makes no sense: {bad.exceptions[0]}"
        return reason


async def _messages(connection: Connection) -> AsyncIterator[Any]:
    while True:
        yield await connection.receive()
