"""`dilocoxd` in the shell of a tutorial as a fork of a process that has loaded all that its commands import.

A command needs up to five seconds of CPU for its imports, and a tutorial has forty of them. Two programs stand before
the real ones on the shell's PATH: `dilocoxd`, and the `python` that commands start their helpers with. What they are
asked for is done by a fork (warm_commands_server.py), in their place, with their environment, input and output; any
other module is left to the real python.
"""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.harness.running.warm import fork

SERVER: Final = "tests.tutorials.warm_commands_server"
SOCKET_VARIABLE: Final = "DILOCOXD_TESTS_COMMANDS"
"""Path of the socket at which commands are forked."""
_PROGRAM: Final = """\
#!{python} -IS
import array, json, os, socket, sys
arguments = sys.argv[1:]
if {is_python}:
    if arguments[:1] != ["-m"] or arguments[1:2] not in {helpers}:
        os.execv({python!r}, [{python!r}, *arguments])
    arguments = arguments[1:]
else:
    arguments = ["dilocoxd", *arguments]
order = {{"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(os.environ[{variable!r}])
    server.sendmsg([json.dumps(order).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))])
    status = server.recv(1)
sys.exit(status[0] if status else 1)
"""
HELPERS: Final = ("dilocoxd.trainer.prepare", "dilocoxd.trainer.tokens", "dilocoxd.trained.incoming.first_state")


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[dict[str, str]]:
    """Environment of shells whose `dilocoxd` is forked, with PATH; `folder` is empty. No command outlives the block.

    Inner steps are as long as they are: what is learnt in a tutorial's few rounds depends on their number.
    """
    place = folder / "socket"
    for name in ("dilocoxd", "python"):
        program = folder / name
        text = _PROGRAM.format(
            python=sys.executable,
            is_python=name == "python",
            helpers=[[one] for one in HELPERS],
            variable=SOCKET_VARIABLE,
        )
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        listener.listen()
        server = fork(SERVER, {SOCKET_VARIABLE: listener.fileno()}, output=2)
    try:
        yield {
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            SOCKET_VARIABLE: str(place),
        }
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
