"""Real workers for tests without a daemon: forked by the product's own fork server, in milliseconds each."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dilocoxd.daemon.workers.forked import ForkLaunch
from dilocoxd.daemon.workers.ranks import listen, with_ranks
from dilocoxd.ipc.process_label import padded
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from dilocoxd.wire.local.fork_server import (
    FORK_MESSAGE_BYTES_MAX,
    FORK_MESSAGES,
    Fork,
    Forked,
    ForkFailed,
    Preload,
    Warm,
    WorkerExited,
)

OUTER = "dilocoxd.outerworker.main"
TRAINER = "dilocoxd.trainer.main"
WAIT_S = 120.0
LOAD_S = 600.0
"""Against hangs alone: imports of ten seconds of CPU took 150 s at a load of 15."""
ROOT = Path(__file__).parents[3]
LABEL = "for tests" + " " * 300
"""Room for the command lines of its forks, which `ps` shows."""


class ForkedProcess:
    """A forked process; has what the tests need of subprocess.Popen."""

    def __init__(self, forks: "Forks", number: int, pid: int) -> None:
        self._forks = forks
        self._number = number
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._forks.exits.get(self._number)

    def poll(self) -> int | None:
        """Exit status, or None while it runs; negative: killed by that signal."""
        self._forks.hear(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + (timeout or WAIT_S)
        while (status := self.poll()) is None:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or WAIT_S)
            self._forks.hear(min(rest, 1.0))
        return status

    def send_signal(self, number: int) -> None:
        """To this process alone, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server(Protocol):
    """The process of a fork server."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait_for(self, timeout_s: float) -> int: ...


Launch = Callable[[Sequence[str], Mapping[str, str], socket.socket], Server]
"""Starts a fork server with this command and environment; the socket is its standard input."""


class _Program(subprocess.Popen[bytes]):
    def wait_for(self, timeout_s: float) -> int:
        return self.wait(timeout_s)


def _start_program(command: Sequence[str], environment: Mapping[str, str], control: socket.socket) -> Server:
    return _Program(command, stdin=control, env=environment, start_new_session=True)


class Forks:
    """One fork server that has loaded `modules`. Use as a context manager; at its end all its workers are gone."""

    def __init__(self, *modules: str, launch: Launch | None = None) -> None:
        """`launch`: what starts the fork server, if that is no program as always (spare.py)."""
        self._launch = launch or _start_program
        self.exits: dict[int, int] = {}
        self._modules = modules
        self._forked: dict[int, int] = {}
        self._lock = threading.RLock()
        self._num_forks = 0
        self.num_threads = 0

    def __enter__(self) -> "Forks":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._mark = f"forks-{os.getpid()}-{id(self)}"
        with theirs:
            # Whichever test is the first of this process may stand in another folder.
            environment = {**os.environ, TREE_VARIABLE: padded(self._mark), "OMP_NUM_THREADS": "1"}
            environment["PYTHONPATH"] = str(ROOT)
            command = (sys.executable, "-m", "dilocoxd.ipc.fork_server", LABEL)
            self._process = self._launch(command, environment, theirs)
        self._control = ours
        self.load(*self._modules)
        return self

    def load(self, *modules: str) -> None:
        """What those forked from now on find loaded."""
        with self._lock:
            self._control.send(FORK_MESSAGES.encode(Preload(modules)))
            warm = self._read(LOAD_S)
            while not isinstance(warm, Warm):
                warm = self._read(LOAD_S)
        self.num_threads = warm.num_threads

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait_for(WAIT_S)

    @property
    def pid(self) -> int:
        """Of the fork server."""
        return self._process.pid

    def outer(self, environment: Mapping[str, str]) -> ForkedProcess:
        """An outer worker; a launcher for OuterDaemon."""
        return self.start(OUTER, environment)

    def start(
        self, module: str, environment: Mapping[str, str], *, output: int = 2, passed: Mapping[str, int] | None = None
    ) -> ForkedProcess:
        """A process that runs `main()` of `module` and writes to `output`."""
        names, values, passed = tuple(environment), tuple(environment.values()), passed or {}
        with self._lock:
            self._num_forks += 1
            number = self._num_forks
            order = Fork(number, module, f"{self._mark}/{number}", names, values, tuple(passed))
            socket.send_fds(self._control, [FORK_MESSAGES.encode(order)], [output, *passed.values()])
            while number not in self._forked:
                self._read(WAIT_S)
            return ForkedProcess(self, number, self._forked.pop(number))

    def ranks(
        self, module: str, environment: Mapping[str, str], num_ranks: int, output: int = 2
    ) -> list[ForkedProcess]:
        """Processes that meet as the ranks of a site's trainers do."""
        with listen() as listener:
            plain = ForkLaunch(module, (environment,), Path(os.devnull), mark="")
            launch = with_ranks(plain, num_ranks, listener)
            return [
                self.start(module, each, output=output, passed={} if rank else launch.passed)
                for rank, each in enumerate(launch.environments)
            ]

    @property
    def is_alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def hear(self, timeout_s: float) -> None:
        """Note what has ended meanwhile, or after `timeout_s` nothing; other threads look at the same time."""
        select.select([self._control], [], [], timeout_s)
        with self._lock:
            while select.select([self._control], [], [], 0.0)[0]:
                self._read(0.0)

    def _read(self, timeout_s: float) -> Any:
        """The next thing that the fork server says."""
        assert select.select([self._control], [], [], timeout_s)[0], f"the fork server is silent for {timeout_s:g} s"
        data = self._control.recv(FORK_MESSAGE_BYTES_MAX)
        assert data, f"the fork server ended with status {self._process.wait_for(WAIT_S)}"
        message = FORK_MESSAGES.decode(data)
        assert not isinstance(message, ForkFailed), message.reason
        if isinstance(message, Forked):
            self._forked[message.number] = message.pid
        elif isinstance(message, WorkerExited):
            self.exits[message.number] = message.status
        return message
