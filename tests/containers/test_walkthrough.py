"""The container half of docs/operations/quickstart.md, typed as it stands there, against our own engine."""

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.containers.engine import CONTEXT_READY, FOLDER, PREFIX, base_image, client, docker, say
from tests.containers.node import PACED, Node, paced_volume
from tests.containers.quickstart import steps
from tests.harness.running.run_directories import free_port
from tests.harness.running.sites import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]

PROJECT = f"{PREFIX}quick"
PATIENCE_S = 400.0
SHIM = """#!/bin/sh
# `docker compose` is a program of its own with this engine, and the build has no network and another base image.
set -eu
case "$1" in
    compose)
        file=$3; shift 3
        case $file in *swarm*) set -- -f {paced} "$@" ;; esac
        exec docker-compose --project-name {project} -f "$file" "$@" ;;
    build) shift; exec {client} build --build-arg BASE_IMAGE={base} --build-arg OFFLINE=1 --network none "$@" ;;
esac
exec {client} "$@"
"""
PACED_SITES = """version: "3.8"
x-paced: &paced
  environment: {environment}
  volumes: ["{volume}"]
services: {{one: *paced, two: *paced, three: *paced}}
"""
"""Beside the page's file: three sites that train as fast as they can, with a thread for each core, for as long as the
others start, leave no CPU to whatever runs beside them."""
POLL_S = 1.0
WATCH = "docker compose -f docker/compose.swarm.yaml --profile watch"
PROMETHEUS = """FROM {base}
COPY prometheus /bin/prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""
"""Debian's Prometheus where the profile has the project's own image: no registry of images is asked."""
ASK_PROMETHEUS = (
    "import json,urllib.request as u;"
    "get=lambda path: json.load(u.urlopen('http://127.0.0.1:9090/api/v1/' + path))['data'];"
    "up=[one['value'][1] for one in get('query?query=up')['result']];"
    "steps=get('query?query=dilocoxd_height')['result'];"
    "print(up.count('1'), len(steps), sum(len(g['rules']) for g in get('rules')['groups']))"
)


class ComposedNode(Node):
    """A service of the page's swarm."""

    @property
    def id(self) -> str:
        return f"{PROJECT}_{self.name}_1"


ONE = ComposedNode("one")


@pytest.fixture
def terminal(image: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment in which the commands of the page work; whatever they leave is removed."""
    paced = tmp_path / "paced.yaml"
    shared = {"DILOCOXD_PARALLEL__THREADS_PER_RANK": "1", **PACED}
    paced.write_text(PACED_SITES.format(environment=json.dumps(shared), volume=paced_volume()[1]))
    shim = tmp_path / "docker"
    shim.write_text(SHIM.format(project=PROJECT, client=" ".join(client()), base=base_image(), paced=paced))
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DOCKER_HOST": f"unix://{FOLDER}/sock",
        "DILOCOXD_PRESET": "tiny",
        "DILOCOXD_PORT": f"127.0.0.1:{free_port()}",
        "PROMETHEUS_PORT": str(free_port()),
        "PROMETHEUS_IMAGE": f"{PREFIX}-prometheus",
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
    started, joint = time.monotonic(), 0
    for script in blocks:
        said = wait_typed(script, terminal)
        if "swarm" in script and ("up -d" in script or "start three" in script):
            newest = wait_joint(newest_of_three(), terminal)
            joint += 1
            if joint == 1:
                watch_by_prometheus(terminal)
            said += logs(terminal)
            say(f"quickstart with compose: entry {newest} is of three sites, {time.monotonic() - started:.0f} s")
        assert "Traceback" not in said
    assert joint == 2, "one before and one after a site was stopped"


def watch_by_prometheus(environment: dict[str, str]) -> None:
    """The Prometheus of the profile `watch` reaches all sites, reads their metrics and has the alert rules."""
    folder = CONTEXT_READY.parent / "prometheus"
    folder.mkdir(exist_ok=True)
    shutil.copy2(str(shutil.which("prometheus")), folder / "prometheus")
    (folder / "Dockerfile").write_text(PROMETHEUS.format(base=base_image()))
    docker("build", "-q", "--network", "none", "-t", environment["PROMETHEUS_IMAGE"], folder)
    typed(f"{WATCH} up -d prometheus", environment)

    def sees() -> tuple[int, ...]:
        done = shell(f'{WATCH} exec -T prometheus python3 -c "{ASK_PROMETHEUS}"', environment)
        found = tuple(int(word) for word in done.stdout.split()) if done.returncode == 0 else (0, 0, 0)
        return found if found[:2] == (3, 3) and found[2] > 0 else ()

    def explain() -> str:
        return typed(f"{WATCH} logs --no-color --tail 50 prometheus", environment)

    found = wait_until(sees, "Prometheus sees three sites", PATIENCE_S, explain, poll_s=POLL_S)
    say(f"profile watch: Prometheus scrapes {found[0]} sites and has {found[2]} alert rules")
    typed(f"{WATCH} rm --force --stop prometheus", environment)


def wait_joint(after: int, environment: dict[str, str]) -> int:
    """First entry of three sites that the first site shows above `after`."""

    def found() -> list[int]:
        newest = newest_of_three()
        return [newest] if newest > after else []

    return int(wait_until(found, "an entry of three", PATIENCE_S, lambda: logs(environment), poll_s=POLL_S)[0])


def wait_typed(script: str, environment: dict[str, str]) -> str:
    """A block, line by line; an `exec` before the daemon answers fails, so that line is typed when it does, until it
    works."""
    said = ""
    for line in script.splitlines():
        if " exec " in line:
            wait_until(ONE.status, "the first site answers", PATIENCE_S, partial(logs, environment), poll_s=POLL_S)
            wait_until(partial(is_done, line, environment), line, PATIENCE_S, partial(logs, environment), poll_s=POLL_S)
        else:
            said += typed(line, environment)
    return said


def is_done(line: str, environment: dict[str, str]) -> bool:
    """Whether the command succeeded."""
    return shell(line, environment).returncode == 0


def newest_of_three() -> int:
    """Newest entry of three sites in the first site's history; -1: none."""
    return max((int(row["round"]) for row in ONE.rounds() if len(row["contributors"]) == 3), default=-1)


def logs(environment: dict[str, str]) -> str:
    """What the sites said."""
    return typed("docker compose -f docker/compose.swarm.yaml logs --no-color --tail 100", environment)
