"""One container: commands in it, its daemon's API, what it logged. Nothing here knows what a test is about."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.containers.engine import PREFIX, client, docker
from tests.harness.paced.sitecustomize import STEP_VARIABLE
from tests.harness.running.sites import ANSWER_S, ROOT, wait_until

PACED_AT = "/paced"
PACED = {"PYTHONPATH": PACED_AT, STEP_VARIABLE: "0.08"}
"""Environment of sites that leave CPU to the others (tests/harness/paced)."""


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
        """JSON of an API path, or None while nobody answers; asked from inside, where the API listens on loopback."""
        asked = f"u.urlopen('http://127.0.0.1:{port}{path}', timeout={ANSWER_S})"
        try:
            answer = self.exec("python3", "-c", f"import urllib.request as u; print({asked}.read().decode())")
            return json.loads(answer)
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            return None

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
