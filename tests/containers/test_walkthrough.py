"""The container half of docs/operations/quickstart.md, typed as it stands there, against our own engine."""

import os
import resource
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.containers.engine import CONTEXT_READY, FOLDER, PREFIX, base_image, client, docker, say
from tests.containers.quickstart import steps
from tests.harness.sites import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1500)]

PROJECT = f"{PREFIX}quick"
PATIENCE_S = 400.0
SHIM = """#!/bin/sh
# `docker compose` is a program of its own with this engine, and the build has no network and another base image.
set -eu
case "$1" in
    compose) shift; exec docker-compose --project-name {project} "$@" ;;
    build) shift; exec {client} build --build-arg BASE_IMAGE={base} --build-arg OFFLINE=1 --network none "$@" ;;
esac
exec {client} "$@"
"""
COUNT_THREE = (
    "import json,urllib.request as u;"
    "rows=json.load(u.urlopen('http://127.0.0.1:8080/v1/rounds?from=0&limit=1000'));"
    "print(max((len(r['contributors']) for r in rows), default=0))"
)


@pytest.fixture
def terminal(image: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment in which the commands of the page work; whatever they leave is removed."""
    shim = tmp_path / "docker"
    shim.write_text(SHIM.format(project=PROJECT, client=" ".join(client()), base=base_image()))
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DOCKER_HOST": f"unix://{FOLDER}/sock",
        "DILOCOXD_PRESET": "tiny",
        "DILOCOXD_PORT": "31997",
        "DILOCOXD_FILES": str(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        "COMPOSE_HTTP_TIMEOUT": "600",
    }
    yield environment
    for name in ("compose.swarm.yaml", "compose.yaml"):
        typed(f"docker compose -f docker/{name} down -v", environment)


def shell(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A block of commands in the copy of the repository."""
    command = ["sh", "-ec", script]
    return subprocess.run(
        command, cwd=CONTEXT_READY, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def typed(script: str, environment: dict[str, str]) -> str:
    """What a shell says to a block of commands; all must succeed."""
    done = shell(script, environment)
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def test_every_command_of_the_quickstart_for_containers_leads_to_three_sites(terminal: dict[str, str]) -> None:
    blocks = [step.script for step in steps() if step.machines == ("host",)]
    for script in blocks:
        said = wait_typed(script, terminal)
        if "up -d" in script and "swarm" in script:
            wait_until(lambda: contributors("one") == 3, "an entry of three", PATIENCE_S, lambda: logs(terminal))
            said += logs(terminal)
            assert "Traceback" not in said
            say("quickstart with compose: an entry of three sites")


def wait_typed(script: str, environment: dict[str, str]) -> str:
    """A block, line by line; an `exec` before the daemon answers fails, so that line is typed until it works."""
    said = ""
    for line in script.splitlines():
        if " exec " in line:
            wait_until(partial(is_done, line, environment), line, PATIENCE_S, partial(logs, environment))
        else:
            said += typed(line, environment)
    return said


def is_done(line: str, environment: dict[str, str]) -> bool:
    """Whether the command succeeded."""
    return shell(line, environment).returncode == 0


def contributors(name: str) -> int:
    """Most contributors that one entry of this site's history has."""
    node = docker("ps", "-q", "--filter", f"name={PROJECT}_{name}_1")
    done = subprocess.run(
        [*client(), "exec", node, "python3", "-c", COUNT_THREE], capture_output=True, text=True, timeout=60, check=False
    )
    return int(done.stdout) if done.returncode == 0 else 0


def logs(environment: dict[str, str]) -> str:
    """What the sites said."""
    return typed("docker compose -f docker/compose.swarm.yaml logs --no-color --tail 100", environment)
