"""The first fork server that a daemon starts is a process that has its modules loaded; each further one is as always.

In a daemon that a test forks it is a spare (spare.py), in the test's own process a fork of what forks the daemons.
"""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from dilocoxd.daemon.workers.supervisor import Child, Launch, open_log
from dilocoxd.errors import WorkerError
from dilocoxd.ipc import fork_server
from dilocoxd.ipc.process_label import show_command, show_mark
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from tests.harness.outer_worker.forks import ForkedProcess
from tests.harness.running.warm import CONTROL_VARIABLE, ORDER_VARIABLE

GONE_S: Final = 60.0


class Process(Protocol):
    """What is used of asyncio's Process."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...


Become = Callable[[Sequence[str], Mapping[str, str], int, int], Process]
"""Makes a loaded process the fork server of this command and environment; then its standard input, and its output.
Raises OSError."""


def take_first(become: Become) -> None:
    """From now on the next fork server of this process is what `become` gives."""
    exec_instead = Child.start
    unused = [become]

    async def start(launch: Launch, *, stdin: int = subprocess.DEVNULL) -> Child:
        if launch.command[1:3] != ("-m", fork_server.__name__) or not unused:
            return await exec_instead(launch, stdin=stdin)
        environment = {**os.environ, **launch.environment, TREE_VARIABLE: launch.mark}
        try:
            log = await asyncio.to_thread(open_log, launch.log_path, launch.header)
            try:
                found = unused.pop()(launch.command, environment, stdin, log)
            finally:
                os.close(log)
        except OSError as error:  # it has died
            raise WorkerError(f"cannot start {launch.command[0]}: {error}") from error
        return Child(launch, found)  # type: ignore[arg-type]

    Child.start = start  # type: ignore[method-assign,assignment]


@contextlib.contextmanager
def first_taken(become: Become) -> Iterator[None]:
    """The same for a site that runs inside, and no longer."""
    exec_instead = Child.start
    take_first(become)
    try:
        yield
    finally:
        Child.start = exec_instead  # type: ignore[method-assign]


class WarmForkServer:
    """One that another process forked, which alone hears how it ended."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        """Exit status; negative: killed by that signal."""
        with contextlib.suppress(ProcessLookupError):
            place = os.pidfd_open(self.pid)
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(place, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(place)
                os.close(place)
        return await asyncio.to_thread(self._process.wait, GONE_S)


def main() -> int:
    """In the fork: be the fork server that the order names."""
    with os.fdopen(int(os.environ[ORDER_VARIABLE])) as file:
        order = json.load(file)
    control = int(os.environ[CONTROL_VARIABLE])
    os.dup2(control, 0)
    os.close(control)
    return be_fork_server(order["command"], order["environment"])


def be_fork_server(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Serve the socket at standard input until it ends; the exit status."""
    os.environ.clear()
    os.environ.update(environment)
    show_command(command)
    show_mark(environment[TREE_VARIABLE])
    return fork_server.main()
