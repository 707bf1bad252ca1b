"""Daemons as children of a process that has loaded their modules already (warm_server.py), one for each test process.

Tests of start times, of memory, or of what a daemon imports start theirs cold: `SiteProcess(..., cold=True)`.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dilocoxd.ipc.process_label import padded
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from tests.harness.running.warm_server import MESSAGE_BYTES_MAX, SITE_TEXT, STEP_VARIABLE as STEP_VARIABLE

ROOT: Final = Path(__file__).resolve().parents[3]
WARM_S: Final = 120.0
WARM_VARIABLE: Final = "DILOCOXD_TESTS_FORK"
"""Set for all that tests start (tests/conftest.py)."""


class WarmProcess:
    """A daemon that was forked; has what the tests need of subprocess.Popen."""

    def __init__(self, warm: "Warm", pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self._warm = warm

    @property
    def returncode(self) -> int | None:
        return self._warm.ended.get(self.pid)

    def poll(self) -> int | None:
        """Exit status, or None while it runs; negative: killed by that signal."""
        self._warm.read(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            rest = 1.0 if deadline is None else deadline - time.monotonic()
            if timeout is not None and rest <= 0:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            self._warm.read(min(rest, 1.0))
        return status

    def send_signal(self, number: int) -> None:
        """To this process alone, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The process that forks; started by the first daemon, ended with the tests."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self._forked: list[int] = []
        self._lock = threading.RLock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mark = padded(f"warm-{os.getpid()}-{id(self)}")
        environment = {**os.environ, TREE_VARIABLE: mark, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.harness.running.warm_server", SITE_TEXT]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs, env=environment, start_new_session=True)
        atexit.register(self._close)
        assert select.select([self._control], [], [], WARM_S)[0], "daemons cannot be forked: their modules do not load"
        assert "warm" in json.loads(self._control.recv(MESSAGE_BYTES_MAX) or "{}"), "daemons cannot be forked"

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: int, namespace: str
    ) -> WarmProcess:
        """What `python -m ARGUMENTS` would be, in a session of its own; `namespace`: of the network; none if empty."""
        order = {
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "namespace": namespace,
        }
        with self._lock:
            socket.send_fds(self._control, [json.dumps(order).encode()], [output])
            self.read(WARM_S)
            while not self._forked:  # the end of another one came first
                assert select.select([self._control], [], [], WARM_S)[0], f"nothing was forked for {WARM_S:g} s"
                self.read(0.0)
            return WarmProcess(self, self._forked.pop(), arguments)

    def read(self, timeout_s: float) -> None:
        """Hear what has ended meanwhile, or after `timeout_s` nothing."""
        select.select([self._control], [], [], timeout_s)  # without the lock: others look meanwhile
        with self._lock:
            while select.select([self._control], [], [], 0.0)[0]:
                data = self._control.recv(MESSAGE_BYTES_MAX)
                assert data, f"the process that forks daemons ended with status {self._process.wait(10)}"
                said: dict[str, Any] = json.loads(data)
                if "forked" in said:
                    self._forked.append(said["forked"])
                    self.ended.pop(said["forked"], None)
                else:
                    self.ended[said["ended"]] = said["status"]

    @property
    def is_alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def _close(self) -> None:
        self._control.close()
        self._process.wait(10)


_warm: Warm | None = None


def warm() -> Warm:
    """The one of this test process; another one if it died, which is the fault of the test that ran then."""
    global _warm
    if _warm is None or not _warm.is_alive:
        _warm = Warm()
    return _warm
