"""Process on the head in the place of the trainers of a stage that runs on a node: `main`, forked like a rank would be.

Environment besides that of a rank: the node's connection and what opens its messages (ipc/client.py: NODE_*); RANK is
the first of them, LOCAL_WORLD_SIZE their number. Ends when the daemon, the node or a trainer there is gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ipc import client
from dilocoxd.ipc.client import LINK_LOST_STATUS, DaemonConnection, DaemonGone
from dilocoxd.ipc.hang_files import DUMP_SIGNAL
from dilocoxd.ipc.sealed import Seal, SealedSocket, read_node_key
from dilocoxd.trainer.away.relay import StageEnded, StageRelay
from dilocoxd.wire.local.node import PartFolder, StartStage

EXIT_ENDED: Final = 1
LINK_END_MS: Final = 500
"""So long the end of the link to a node may come behind that of the daemon's socket, if both ended for one reason."""


def main() -> int:
    """Stand for one stage; returns the exit code."""
    signal.signal(DUMP_SIGNAL, signal.SIG_IGN)  # where its ranks hang they cannot be asked from here
    run_directory = Path(os.environ[client.RUN_DIRECTORY_VARIABLE])
    try:
        key = read_node_key(Path(os.environ[client.NODE_KEY_VARIABLE]))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sock = socket.socket(fileno=int(os.environ[client.NODE_SOCKET_VARIABLE]))
    sock.setblocking(True)
    salts = bytes.fromhex(os.environ[client.NODE_SALTS_VARIABLE])
    sealed = SealedSocket(sock, Seal(key, salts, is_head=True, sent=1, received=1))
    start = _start(run_directory)
    relay = StageRelay(sealed, start, run_directory, lambda daemon: _exit_when_daemon_goes(daemon, sock))
    try:
        sealed.send(start)
        folder = sealed.receive()
        if not isinstance(folder, PartFolder):
            raise StageEnded(getattr(folder, "reason", f"the node said {type(folder).__name__}"))
        relay.run()
    except (DaemonGone, StageEnded, EOFError, OSError, WireError) as error:
        return _ended(relay, error)
    return 0


def _ended(relay: StageRelay, error: Exception) -> int:
    """Tell why, here and to the daemon. Where the connection has ended nobody failed, and it is held against nobody."""
    if isinstance(error, StageEnded) and error.is_well:
        return 0
    is_lost = isinstance(error, EOFError | OSError)
    told = f"the connection to its node ended ({error})" if is_lost else str(error)
    sys.stderr.write(f"{relay.name}: {told}\n")
    sys.stderr.flush()
    relay.tell_failure(told)
    return LINK_LOST_STATUS if is_lost else EXIT_ENDED


def _exit_when_daemon_goes(daemon: DaemonConnection, link: socket.socket) -> None:
    """A thread: the other one may be waiting for the node."""

    def watch() -> None:
        poll = select.poll()
        poll.register(daemon.fileno(), select.POLLRDHUP | select.POLLHUP)
        poll.poll()
        node = select.poll()
        node.register(link.fileno(), select.POLLRDHUP | select.POLLHUP)
        os._exit(LINK_LOST_STATUS if node.poll(LINK_END_MS) else EXIT_ENDED)

    threading.Thread(target=watch, name="daemon-watch", daemon=True).start()


def _start(run_directory: Path) -> StartStage:
    site = run_directory / "site.toml"
    return StartStage(
        os.environ[client.NODE_SERVED_VARIABLE],
        int(os.environ["RANK"]),
        int(os.environ["LOCAL_WORLD_SIZE"]),
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["MASTER_PORT"]),
        os.environ.get(client.PEER_VARIABLE, ""),
        (run_directory / "run.toml").read_bytes(),
        site.read_bytes() if site.exists() else b"",
    )
