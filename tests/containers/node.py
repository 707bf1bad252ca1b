"""One container: commands in it, its daemon's API, what it logged. Nothing here knows what a test is about."""

import contextlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.containers.engine import PREFIX, client, docker
from tests.harness.internet.namespaces import standing_beside
from tests.harness.paced.sitecustomize import STEP_VARIABLE
from tests.harness.running.sites import ROOT, get_json, wait_until

PACED_AT = "/paced"
PACED = {"PYTHONPATH": PACED_AT, STEP_VARIABLE: "0.24"}
"""Environment of sites that leave CPU to the others (tests/harness/paced): a step is 10 to 20 ms of it, and more of
them prove nothing more. Phases are made long by this, not by more steps."""


_first_processes: dict[str, int] = {}
"""Container -> descriptor of its first process, which may have ended."""


def paced_volume() -> tuple[str, str]:
    """Options that bring what PACED names."""
    return "--volume", f"{ROOT}/tests/harness/paced:{PACED_AT}:ro"


def full_name(name: str) -> str:
    """As the engine knows it."""
    return f"{PREFIX}-{name}"


def remove(*names: str) -> None:
    """Containers of these names, with all their volumes; none need exist."""
    full_names = [full_name(name) for name in names]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: docker("rm", "--force", "--volumes", name), full_names))
    docker("volume", "rm", "--force", *full_names)


@dataclass(frozen=True)
class Node:
    """A container by its short name."""

    name: str

    @property
    def id(self) -> str:
        return full_name(self.name)

    def exec(self, *command: str, user: str = "root", timeout_s: float = 300.0) -> str:
        """Output of a command in the container."""
        return docker("exec", "--user", user, self.id, *command, timeout_s=timeout_s)

    def sh(self, script: str, user: str = "root", timeout_s: float = 300.0) -> str:
        """Output of a shell script in the container; stops at the first failing command."""
        return self.exec("sh", "-ec", script, user=user, timeout_s=timeout_s)

    def get(self, path: str, port: int = 8080) -> Any | None:
        """JSON of an API path, or None while nobody answers; asked in its network, where the API listens on loopback.

        Not by a command in the container: waits ask several times a second, and that costs a quarter second of CPU.
        """
        if (process := self._first_process()) is None:
            return None
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(standing_beside(process))
            except OSError:  # it has ended
                os.close(_first_processes.pop(self.id))
                return None
            return get_json(f"http://127.0.0.1:{port}{path}")

    def _first_process(self) -> int | None:
        """Descriptor of the container's first process; kept, for asking the engine is dear too. None: it has none."""
        if self.id not in _first_processes:
            with contextlib.suppress(AssertionError, ProcessLookupError, subprocess.TimeoutExpired):
                if pid := int(docker("inspect", "--format", "{{.State.Pid}}", self.id)):
                    _first_processes[self.id] = os.pidfd_open(pid)
        return _first_processes.get(self.id)

    def status(self, port: int = 8080) -> dict[str, Any]:
        """GET /v1/status, or {} while nobody answers."""
        found = self.get("/v1/status", port)
        return found if isinstance(found, dict) else {}

    def rounds(self, port: int = 8080) -> list[dict[str, Any]]:
        """The newest rounds, up to a thousand, ascending; [] while nobody answers."""
        return (self.get("/v1/rounds?limit=1000", port) or [])[::-1]

    def wait_height(self, height: int, timeout_s: float, port: int = 8080) -> dict[str, Any]:
        """Status once the site has at least this height and trains."""

        def reached() -> dict[str, Any] | None:
            status = self.status(port)
            return status if status.get("height", -1) >= height and status.get("state") == "training" else None

        found: dict[str, Any] = wait_until(
            reached, f"{self.name} trains at height {height}", timeout_s, lambda: self.describe(port)
        )
        return found

    def describe(self, port: int = 8080) -> str:
        """What a failed wait shows."""
        return f"--- {self.name}: {json.dumps(self.status(port))[:1500]}\n{self.logs()[-3000:]}"

    def logs(self) -> str:
        """All that the container's main process said."""
        command = [*client(), "logs", self.id]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
        return done.stdout.decode("utf-8", "replace")
