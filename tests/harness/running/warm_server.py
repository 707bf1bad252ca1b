"""Forks daemons from a process that has loaded all that daemons and their workers import: warm.py is its other end.

A daemon, and its fork server, need three seconds of CPU each for their imports, in hundreds of starts. A fork of this
process is what `python -m MODULE ARGUMENTS...` is at that point, and goes on by itself: own session, own environment,
own arguments. So is its first fork server: a second fork of it that waits until the daemon starts one; each further
one is started as always. Its imports aside, nothing of either is replaced.

One thread, no descriptor but the socket: what makes forks safe in ipc/fork_server.py holds here too.
"""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

MESSAGE_BYTES_MAX: Final = 1 << 17
MODULES: Final = (
    # hivemind's parts without torch first: loaded behind torch they would be others than a daemon has
    *("dilocoxd.cli.main", "dilocoxd.daemon.app", "dilocoxd.api.server", "uvloop"),
    *("dilocoxd.ipc.fork_server", "dilocoxd.outerworker.main", "dilocoxd.trainer.main"),
)
SITE_TEXT: Final = " " * 300
"""Last argument of this process: room for the arguments of its forks, which `ps` shows."""
STEP_VARIABLE: Final = "DILOCOXD_TESTS_STEP_S"
_CLONE_NEWNET: Final = 0x40000000
_NAMESPACES: Final = "/run/netns"


def serve(control: socket.socket) -> None:
    """Fork as asked, and tell the end of each fork, until the tests close their end."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # only so that the pipe wakes us
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def close_in_fork() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        os.close(wake_read)
        os.close(wake_write)

    while True:
        readable, _, _ = select.select([control, wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    control.send(
                        json.dumps({"ended": ended[0], "status": os.waitstatus_to_exitcode(ended[1])}).encode()
                    )
        if control in readable:
            data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                close_in_fork()
                _become(json.loads(data), descriptors[0])
            os.close(descriptors[0])
            control.send(json.dumps({"forked": pid}).encode())


def _become(order: dict[str, Any], output: int) -> NoReturn:
    """In the fork: what `python -m order["arguments"]` would be."""
    from dilocoxd.ipc.process_label import show_command

    def run() -> None:
        os.setsid()
        _take_over(output, 1, 2)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        if order["namespace"]:
            _enter(order["namespace"])
        arguments = order["arguments"]
        show_command((sys.executable, "-m", *arguments))
        sys.argv[:] = arguments  # runpy puts the file's name in the first place
        _keep_spare()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)

    _end_with(run)


def _take_over(descriptor: int, *numbers: int) -> None:
    for number in numbers:
        os.dup2(descriptor, number)
    os.close(descriptor)


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(f"{_NAMESPACES}/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(place, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    os.close(place)


def _end_with(run: Callable[[], Any]) -> NoReturn:
    """Run, then end as an interpreter does, but not by the code of the process that forked us."""
    code: Any = 1
    try:
        code = run() or 0
    except SystemExit as ending:
        code = ending.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pace() -> None:
    """Give inner steps a shortest length. Trainers that train as fast as they can leave no CPU to the other tests."""
    from dilocoxd.trainer.loop import PhaseProgress, TrainingLoop

    step = TrainingLoop._step

    def paced(self: TrainingLoop, phase: PhaseProgress) -> list[Any]:
        began = time.monotonic()
        commands = step(self, phase)
        time.sleep(max(0.0, float(os.environ.get(STEP_VARIABLE, "0")) - (time.monotonic() - began)))
        return commands

    TrainingLoop._step = paced  # type: ignore[method-assign]


def _keep_spare() -> None:
    """Fork the first fork server of this daemon, to wait until it is asked for; it ends with the daemon."""
    from dilocoxd.daemon.workers.supervisor import Child, Launch, open_log
    from dilocoxd.errors import WorkerError

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon = os.getpid()
    spare = os.fork()
    if spare == 0:
        ours.close()
        _end_with(lambda: _be_spare(theirs, daemon))
    theirs.close()
    exec_instead = Child.start
    spares = [_Forked(spare, ours)]

    async def start(launch: Launch, *, stdin: int = subprocess.DEVNULL) -> Child:
        if launch.command[1:3] != ("-m", "dilocoxd.ipc.fork_server") or not spares:
            return await exec_instead(launch, stdin=stdin)
        found = spares.pop()
        order = {
            "mark": launch.mark,
            "command": launch.command,
            "environment": {**os.environ, **launch.environment},
        }
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


class _Forked:
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
    from dilocoxd.ipc import fork_server
    from dilocoxd.ipc.child import die_with_parent
    from dilocoxd.ipc.process_label import show_command, show_mark
    from dilocoxd.ipc.process_tree import TREE_VARIABLE

    die_with_parent(daemon)
    data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
    control.close()
    if not data:
        return 0
    order = json.loads(data)
    os.setsid()
    stdin, log = descriptors
    _take_over(stdin, 0)
    _take_over(log, 1, 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.environ[TREE_VARIABLE] = order["mark"]
    show_command(order["command"])
    show_mark(order["mark"])
    return fork_server.main()


def main() -> None:
    """Serve the tests whose socket is standard input."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    _take_over(nothing, 0)
    for module in MODULES:
        importlib.import_module(module)
    _pace()
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork would take one along"
    control.send(json.dumps({"warm": os.getpid()}).encode())
    serve(control)


if __name__ == "__main__":
    main()
