"""Moves local messages between a worker and its daemon, and receives the shared buffers (docs/internals.md section 4).

Blocking and small on purpose: workers have no event loop. End of file on the socket means that the daemon is gone, and
the worker must exit at once (it is the only reliable sign: a killed daemon sends nothing).
"""

import array
import mmap
import os
import select
import socket
import struct
from collections import deque
from typing import Any

from dilocoxd.errors import WireError, WorkerError
from dilocoxd.wire.local import LOCAL_MESSAGE_BYTES_MAX, LOCAL_MESSAGES, Attach

SOCKET_VARIABLE = "DILOCOXD_SOCKET"
GENERATION_VARIABLE = "DILOCOXD_GENERATION"
_LENGTH = struct.Struct("<I")
_FDS_MAX = 32


class DaemonGone(WorkerError):
    """The daemon closed the socket or died."""


class Connection:
    """Blocking local socket. `receive` returns messages in order; buffers of an Attach are mapped in `buffers`."""

    def __init__(self, path: str | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path or os.environ[SOCKET_VARIABLE])
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self.buffers: dict[str, mmap.mmap] = {}
        self.descriptors: dict[str, int] = {}
        """Of the mapped buffers, to ask which parts of a sparse one exist."""

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message. Raises DaemonGone."""
        body = LOCAL_MESSAGES.encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise DaemonGone(f"daemon socket: {error}") from error

    def receive(self, timeout_s: float | None = None) -> Any | None:
        """Next message, or None when `timeout_s` seconds (None = for ever, 0 = poll) bring none. Raises DaemonGone."""
        while True:
            message = self._parse()
            if message is not None:
                return message
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            self._fill()

    def _fill(self) -> None:
        fds = array.array("i")
        try:
            data, ancillary, _flags, _address = self._socket.recvmsg(
                1 << 16, socket.CMSG_SPACE(_FDS_MAX * fds.itemsize)
            )
        except OSError as error:
            raise DaemonGone(f"daemon socket: {error}") from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        self._fds.extend(fds)
        if not data:
            raise DaemonGone("daemon closed the socket")
        self._received += data

    def _parse(self) -> Any | None:
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > LOCAL_MESSAGE_BYTES_MAX:
                raise WireError("too_large", f"local message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return None
            body = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            message = LOCAL_MESSAGES.decode(body)
            if isinstance(message, Attach):
                self._map(message)
            if message is not None:
                return message
        return None

    def _map(self, attach: Attach) -> None:
        for name, size in zip(attach.names, attach.sizes, strict=True):
            fd = self._fds.popleft()
            self.buffers[name] = mmap.mmap(fd, size)
            replaced = self.descriptors.pop(name, None)
            self.descriptors[name] = fd
            if replaced is not None:
                os.close(replaced)

    def close(self) -> None:
        """Close the socket and the descriptors; mapped buffers stay mapped."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])
