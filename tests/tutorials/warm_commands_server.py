"""Forks the commands of a tutorial's shell (warm_commands.py) and says how each ended."""

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

from dilocoxd.ipc.child import die_with_parent
from tests.harness.running.warm_daemon import be_command
from tests.tutorials.warm_commands import HELPERS, SOCKET_VARIABLE

ORDER_BYTES_MAX: Final = 1 << 17
DAEMONS: Final = (["start"], ["join"], ["run"])
LOADED: Final = (
    *("dilocoxd.cli.commands", "dilocoxd.cli.joining.join", "dilocoxd.cli.status", "dilocoxd.cli.model.data"),
    *("dilocoxd.trained.measure", "dilocoxd.trained.export", "transformers", *HELPERS),
)


def main() -> int:
    """Never returns: it is killed."""
    for module in LOADED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what has ended
    server = os.getpid()
    with socket.socket(fileno=int(os.environ[SOCKET_VARIABLE])) as listener:
        while True:
            asker, _ = listener.accept()
            data, descriptors, _, _ = socket.recv_fds(asker, ORDER_BYTES_MAX, 3)
            if len(descriptors) == 3 and os.fork() == 0:
                listener.close()
                _be(json.loads(data), descriptors, asker, server)
            for descriptor in descriptors:
                os.close(descriptor)
            asker.close()


def _be(order: dict[str, Any], descriptors: list[int], asker: socket.socket, server: int) -> NoReturn:
    """Be the command, then tell the program that asked for it the exit status."""
    status = 1
    try:
        os.setsid()
        die_with_parent(server)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        environment = order["environment"]
        folder = Path(environment[SOCKET_VARIABLE]).parent
        sys.executable = str(folder / "python")
        sys.path[:0] = [place for place in environment.get("PYTHONPATH", "").split(":") if place not in sys.path]
        status = be_command({**order, "namespace": ""}, is_daemon=order["arguments"][1:2] in DAEMONS)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        asker.send(bytes([status & 0xFF]))
        os._exit(status)
