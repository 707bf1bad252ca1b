"""What a forked daemon does in a test: becomes `python -m MODULE ARGUMENTS...`, which its order names (warm.py).

Its first fork server is a second fork, which waits until the daemon starts one; each further one is started as always.
Imports aside, nothing of either is replaced.
"""

import asyncio
import atexit
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import traceback
from typing import Any, Final

from dilocoxd.daemon.workers.supervisor import Child, Launch, open_log
from dilocoxd.errors import WorkerError
from dilocoxd.ipc import fork_server
from dilocoxd.ipc.child import die_with_parent
from dilocoxd.ipc.process_label import show_command, show_mark
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from dilocoxd.trainer.loop import TrainingLoop
from tests.harness.internet.namespaces import enter_namespace
from tests.harness.paced.sitecustomize import pace
from tests.harness.running.warm import ORDER_VARIABLE

MESSAGE_BYTES_MAX: Final = 1 << 17


def main() -> int:
    """Exit status of the command."""
    with os.fdopen(int(os.environ[ORDER_VARIABLE])) as file:
        order = json.load(file)
    return be_command(order, is_daemon=True)


def be_command(order: dict[str, Any], *, is_daemon: bool) -> int:
    """Run `python -m` with its arguments in its folder, environment and network namespace; its exit status."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if order["namespace"]:
        enter_namespace(order["namespace"])
    arguments = order["arguments"]
    show_command((sys.executable, "-m", *arguments))
    sys.argv[:] = arguments  # runpy puts the file's name in the first place
    if is_daemon:
        pace(TrainingLoop)
        _keep_spare()
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if not isinstance(ending.code, str):
            return ending.code or 0
        sys.stderr.write(f"{ending.code}\n")
        return 1
    finally:  # as an interpreter ends
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    return 0


def _keep_spare() -> None:
    """Fork the first fork server of this daemon, to wait until it is asked for; it ends with the daemon."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon = os.getpid()
    spare = os.fork()
    if spare == 0:
        ours.close()
        status = 1
        try:
            status = _be_spare(theirs, daemon)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    theirs.close()
    exec_instead = Child.start
    spares = [_Spare(spare, ours)]

    async def start(launch: Launch, *, stdin: int = subprocess.DEVNULL) -> Child:
        if launch.command[1:3] != ("-m", fork_server.__name__) or not spares:
            return await exec_instead(launch, stdin=stdin)
        found = spares.pop()
        environment = {**os.environ, **launch.environment, TREE_VARIABLE: launch.mark}
        order = {"command": launch.command, "environment": environment}
        try:
            log = await asyncio.to_thread(open_log, launch.log_path, launch.header)
            try:
                with found.control:
                    socket.send_fds(found.control, [json.dumps(order).encode()], [stdin, log])
            finally:
                os.close(log)
        except OSError as error:  # it has died
            raise WorkerError(f"cannot start {launch.command[0]}: {error}") from error
        return Child(launch, found)  # type: ignore[arg-type]

    Child.start = start  # type: ignore[method-assign,assignment]


class _Spare:
    """Has what Child uses of asyncio's Process."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        self._status: int | None = None

    async def wait(self) -> int:
        """Exit status."""
        if self._status is None:
            loop = asyncio.get_running_loop()
            place = os.pidfd_open(self.pid)
            ended = asyncio.Event()
            loop.add_reader(place, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(place)
                os.close(place)
            if self._status is None:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def _be_spare(control: socket.socket, daemon: int) -> int:
    die_with_parent(daemon)
    data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
    control.close()
    if not data:
        return 0
    order = json.loads(data)
    os.setsid()
    stdin, log = descriptors
    for descriptor, number in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.close(stdin)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])
    show_command(order["command"])
    show_mark(order["environment"][TREE_VARIABLE])
    return fork_server.main()
