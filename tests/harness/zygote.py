"""Starts outer workers by forking a process that has torch loaded already: a fresh real process in milliseconds.

For tests that start or kill many workers.
"""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, os, sys
from dilocoxd.outerworker import main
for line in sys.stdin:
    order = json.loads(line)
    if isinstance(order, int):
        print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        os.environ.update(order)
        code = 70
        try:
            code = main.main()
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(pid, flush=True)
"""


class Child:
    """A forked worker; has what the harness needs of subprocess.Popen."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self._returncode: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._returncode is None:
            self._returncode = int(self._zygote.order(self.pid))
        return self._returncode


class Zygote:
    """Use as a context manager; `spawn` is a launcher for OuterDaemon."""

    def __enter__(self) -> Zygote:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def order(self, what: dict[str, str] | int) -> str:
        """Start a child with this environment, or wait for the child with this pid."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def spawn(self, environment: dict[str, str]) -> Child:
        return Child(self, int(self.order(environment)))
