"""Real daemons as child processes on loopback: start, look at, break, stop. No sleeps: every wait has a condition."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.harness.outer_worker.forks import ForkedProcess
from tests.harness.running.warm import STEP_VARIABLE, WARM_VARIABLE, fork_daemon

ROOT = Path(__file__).resolve().parents[3]
POLL_S = 0.2
ANSWER_S = 60.0
"""Against hangs alone: 5 s were too few for a daemon that does not get the processor."""
PYTHON = [sys.executable, "-m"]
STOP_S = 60.0
"""Against hangs alone: a daemon whose stop takes longer than daemon/app.py allows ends itself."""
GONE_S = 60.0
"""Against hangs alone: so long the kernel may need, on a busy machine, to end what was killed."""
STEP_S = "0.24"
"""An inner step of a daemon that is not cold takes at least this long, so that trainers leave CPU to other tests: one
of the tiny preset needs 8 to 16 ms, and some in its daemon. Phases are made long by this, not by more steps."""


def wait_until(
    condition: Callable[[], Any],
    what: str,
    timeout_s: float,
    explain: Callable[[], str] | None = None,
    *,
    poll_s: float = POLL_S,
) -> Any:
    """First true value of `condition`; AssertionError with an explanation after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}\n{explain() if explain else ''}")
        time.sleep(poll_s)


def get_json(url: str, timeout_s: float = ANSWER_S) -> Any | None:
    """What a daemon answers, or None where nobody listens or the answer is no success.

    One that stands still on a busy machine is waited for: a test that asks once means what the daemon says, and would
    take silence for its absence.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return json.load(answer)
    except (OSError, http.client.HTTPException, ValueError):
        return None


@dataclass
class SiteProcess:
    """One daemon with its process tree; `run_dir` outlives it."""

    name: str
    run_dir: Path
    port: int
    """HTTP API."""
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    cold: bool = field(default_factory=lambda: not os.environ.get(WARM_VARIABLE))
    """Whether it does its own imports, as for what measures starts, memory or modules, and outside of the tests."""
    answer_s: float = ANSWER_S
    """So long a question waits; less for who watches sites that are frozen on purpose."""

    @property
    def namespace(self) -> str:
        """Network namespace that it lives in, if not that of the tests."""
        return ""

    @property
    def log_path(self) -> Path:
        return self.run_dir.parent / f"{self.name}.out"

    def start(self, *arguments: str) -> None:
        """Run `dilocoxd ARGUMENTS` (default: run RUN_DIR) in its own process group."""
        self.start_command([*PYTHON, "dilocoxd", *(arguments or ("run", str(self.run_dir)))])

    def start_without_model(self, phase_s: float = 1.5) -> None:
        """Run the daemon with tests/harness/synthetic/fake_site.py in place of workers; a phase takes `phase_s`
        seconds."""
        self.environment["FAKE_PHASE_S"] = str(phase_s)
        self.start_command([*PYTHON, "tests.harness.synthetic.fake_daemon", str(self.run_dir)])

    def start_command(self, command: list[str]) -> None:
        """Run any command as this site's daemon."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **self.environment}
        environment.setdefault(STEP_VARIABLE, STEP_S)
        with self.log_path.open("ab") as log:
            if not self.cold and command[:2] == PYTHON:
                self.process = fork_daemon(command[2:], self.run_dir.parent, environment, log.fileno(), self.namespace)
                return
            inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []  # replaces itself: same pid
            self.process = subprocess.Popen(
                [*inside, *command],
                cwd=self.run_dir.parent,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def get(self, path: str) -> Any | None:
        """JSON of an API path, or None where nobody listens or the answer is no success (`get_json`)."""
        return get_json(f"http://127.0.0.1:{self.port}{path}", self.answer_s)

    def status(self) -> dict[str, Any]:
        """GET /v1/status, or {} while nobody answers."""
        found = self.get("/v1/status")
        return found if isinstance(found, dict) else {}

    def says(self, key: str) -> Any:
        """What its status says under `key`, once it answers: on a busy machine one request may come to nothing."""

        def answer() -> dict[str, Any] | None:
            assert self.process is None or self.process.poll() is None, f"{self.name} died\n{self.describe()}"
            status = self.status()
            return status if status.get(key) is not None else None

        return wait_until(answer, f"{self.name} to say its {key}", ANSWER_S, self.describe)[key]

    def state(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """The status, once the API answers: for who reads a field at once. A busy machine may take seconds for it."""
        found: dict[str, Any] = wait_until(self.status, f"an answer of {self.name}", timeout_s, self.describe)
        return found

    def rounds(self, newest: int = 1000) -> list[dict[str, Any]]:
        """So many of the newest rounds, ascending; [] while nobody answers."""
        return (self.get(f"/v1/rounds?limit={newest}") or [])[::-1]

    def tree(self) -> list[psutil.Process]:
        """The daemon and all its descendants that live now."""
        if self.process is None or self.process.poll() is not None:  # its pid may be another's
            return []
        try:
            daemon = psutil.Process(self.process.pid)
            return [daemon, *daemon.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill_tree(self) -> None:
        """SIGKILL of the whole tree at once, as if the machine had gone."""
        self.signal_tree(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(GONE_S)

    def signal_tree(self, number: signal.Signals) -> None:
        """Same signal to every process of the tree, daemon first."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM to the daemon; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def describe(self) -> str:
        """What a failed wait shows. Of an end by a signal the first words say which, and perhaps why; the stacks of all
        threads, which follow, are long."""
        said = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        at = said.rfind("Fatal Python error")
        fatal = said[max(0, at - 500) : at + 1500] + "\n...\n" if at >= 0 else ""
        status = None if self.process is None else self.process.poll()
        ended = "" if status is None else f" ended with {status}"
        return f"--- {self.name}{ended}: {json.dumps(self.status())[:1500]}\n{fatal}{said[-3000:]}"

    def wait_height(self, height: int, timeout_s: float) -> dict[str, Any]:
        """Status once the site has at least this height."""

        def reached() -> dict[str, Any] | None:
            assert self.process is None or self.process.poll() is None, f"{self.name} died\n{self.describe()}"
            status = self.status()
            return status if status.get("height", -1) >= height else None

        found: dict[str, Any] = wait_until(reached, f"{self.name} at height {height}", timeout_s, self.describe)
        return found


@contextlib.contextmanager
def sites(*members: SiteProcess) -> Iterator[None]:
    """Whatever happens inside, no process of these sites outlives the block."""
    try:
        yield
    finally:
        for member in members:
            trees = member.tree()
            member.signal_tree(signal.SIGCONT)
            member.signal_tree(signal.SIGKILL)
            psutil.wait_procs(trees, timeout=GONE_S)
            if member.process is not None:
                member.process.wait(GONE_S)
