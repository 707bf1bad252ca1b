"""Moves local messages between a worker and its daemon, and receives the shared buffers (docs/internals.md section 4).

Blocking and small on purpose: workers have no event loop. End of file on the socket means that the daemon is gone, and
the worker must exit at once (it is the only reliable sign: a killed daemon sends nothing).
"""

import array
import mmap
import os
import select
import socket
import threading
from collections import deque
from typing import Any

from dilocoxd.errors import WorkerError
from dilocoxd.wire.local.frames import frame, take_message
from dilocoxd.wire.local.worker import Attach

SOCKET_VARIABLE = "DILOCOXD_SOCKET"
GENERATION_VARIABLE = "DILOCOXD_GENERATION"
RUN_DIRECTORY_VARIABLE = "DILOCOXD_RUN_DIR"
PEER_VARIABLE = "DILOCOXD_PEER"
"""Names this site: in the logs of its workers, and for the order in which its trainers read the text."""
LISTENER_VARIABLE = "DILOCOXD_LISTENER"
"""Descriptor of the socket that listens on MASTER_PORT; stage rank 0 has it."""
PART_VARIABLE = "DILOCOXD_OUTER_PART"
"""Which of the outer parts a process is (wire/placement.py); without it, it is the only one."""
NODE_SOCKET_VARIABLE = "DILOCOXD_NODE_SOCKET"
"""Descriptor of the connection to a node, of the process that stands for an outer part there."""
NODE_KEY_VARIABLE = "DILOCOXD_NODE_KEY"
"""Path of the key; likewise the salts of the connection (hex), the name of the part, and the start of the head."""
NODE_SALTS_VARIABLE = "DILOCOXD_NODE_SALTS"
NODE_SERVED_VARIABLE = "DILOCOXD_NODE_SERVED"
NODE_INCARNATION_VARIABLE = "DILOCOXD_NODE_INCARNATION"
NODE_NEW_VARIABLE = "DILOCOXD_NODE_NEW"
"""Not empty: the part has no buffers yet."""
NODE_GRACE_VARIABLE = "DILOCOXD_NODE_GRACE_S"
"""How long a silence of the node's machine is borne; 0 or nothing: it ends the connection."""
ON_NODE_VARIABLE = "DILOCOXD_ON_NODE"
"""Not empty: this trainer runs on a node, and what it shares with the others lies at the head."""
CLUSTER_ADDRESS_VARIABLE = "DILOCOXD_CLUSTER_ADDRESS"
"""Of this machine in the network that head and nodes share, where the trainers run on several."""
LINK_LOST_STATUS = 3
"""Exit status of a process in the place of a worker on a node, whose connection to that node has ended."""
_FDS_MAX = 32


class DaemonGone(WorkerError):
    """The daemon closed the socket or died."""


class DaemonConnection:
    """Blocking local socket. `receive` returns messages in order; buffers of an Attach are mapped in `buffers`."""

    def __init__(self, path: str | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path or os.environ[SOCKET_VARIABLE])
        self._readable = select.poll()  # select() knows no descriptor above 1023, and a daemon may hold more
        self._readable.register(self._socket, select.POLLIN)
        self._sending = threading.Lock()
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self.buffers: dict[str, mmap.mmap] = {}
        self.descriptors: dict[str, int] = {}
        """Of the mapped buffers, to ask which parts of a sparse one exist."""

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message; from any thread. Raises DaemonGone."""
        try:
            with self._sending:
                self._socket.sendall(frame(message))
        except OSError as error:
            raise DaemonGone(f"daemon socket: {error}") from error

    def receive(self, timeout_s: float | None = None) -> Any | None:
        """Next message, or None when `timeout_s` seconds (None = for ever, 0 = poll) bring none. Raises DaemonGone."""
        while True:
            message = self._parse()
            if message is not None:
                return message
            if not self._readable.poll(None if timeout_s is None else timeout_s * 1000):
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
        message = take_message(self._received)
        if isinstance(message, Attach):
            self._map(message)
        return message

    def _map(self, attach: Attach) -> None:
        for name, size in zip(attach.names, attach.sizes, strict=True):
            fd = self._fds.popleft()
            self.buffers[name] = mmap.mmap(fd, size)
            replaced = self.descriptors.pop(name, None)
            self.descriptors[name] = fd
            if replaced is not None:
                os.close(replaced)

    def check(self) -> None:
        """Raises DaemonGone when the daemon has ended this connection, whatever it said before."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        if poll.poll(0):
            raise DaemonGone("daemon closed the socket")

    def close(self) -> None:
        """Close the socket and the descriptors; mapped buffers stay mapped."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])
