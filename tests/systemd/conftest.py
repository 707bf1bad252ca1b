"""A machine that boots systemd, with dilocoxd installed as docs/operations/systemd.md says, and a run to train."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import FOLDER, copy_source, corpus, docker, engine, say, site_image, wheels
from tests.containers.node import PACED, Node, paced_volume, remove
from tests.harness.running.sites import wait_until

NAME = "systemd"
IN_SOURCE = "cd /srv/dilocoxd && export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels &&"
RUN_DIR = "/var/lib/dilocoxd/run"
TEXT = "/var/lib/dilocoxd/text"
SETTINGS = {
    "data.corpus": f'"{TEXT}"',
    "data.validation_sequences": "2",
    "strategy.inner_steps": "14",
    "strategy.extend_steps_max": "280",
    "snapshot.every_rounds": "4",
    "parallel.threads_per_rank": "1",
}
SERVICES = " ".join(f"{name}={value}" for name, value in {"DILOCOXD_PARALLEL__THREADS_PER_RANK": "1", **PACED}.items())
"""All these machines share the cores of one: a stage of each has one thread, and its trainer is paced."""

BOOT = (
    "mkdir -p /etc/systemd/system.conf.d"
    f" && printf '[Manager]\\nDefaultEnvironment={SERVICES}\\n'"
    " > /etc/systemd/system.conf.d/cores.conf && mount --make-rshared / && exec /sbin/init"
)


class Machine(Node):
    """The container, seen as a machine with services."""

    def wait_booted(self) -> None:
        """Until systemd has started everything."""
        states = ("running", "degraded")
        script = "systemctl is-system-running || true"
        wait_until(lambda: self.sh(script).strip() in states, "the machine has booted", 300, self.logs, poll_s=0.5)

    def show(self, unit: str, field: str) -> str:
        """One property of a unit."""
        return self.exec("systemctl", "show", "--value", "-p", field, unit).strip()

    def journal(self, unit: str) -> str:
        """All that a unit logged."""
        return self.exec("journalctl", "--no-pager", "-o", "cat", "-u", unit)

    def describe(self, port: int = 8080) -> str:
        """What a failed wait shows."""
        return f"{self.status(port)}\n{self.sh('journalctl --no-pager -n 60')}"


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Booted, installed, with a run directory; shared by all tests, which follow each other."""
    with engine():
        remove(NAME)
        node = Machine(NAME)
        try:
            boot(node, tmp_path_factory.mktemp("source"), "--network", "none")
            install(node)
            make_run(node)
            yield node
        finally:
            remove(NAME)


def boot(node: Machine, folder: Path, *options: str) -> None:
    """Start a container with systemd as its first process, and give it a copy of the repository in SOURCE."""
    docker(
        "run", "--detach", "--name", node.id, "--hostname", node.name, "--user", "0", "--workdir", "/srv",
        "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
        "--tmpfs", "/run", "--tmpfs", "/run/lock", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw",
        "-v", f"{wheels()}:/wheels:ro", "--stop-signal", "SIGRTMIN+3", "--no-healthcheck",
        # systemd leaves this to whoever starts the container; without it credentials do not reach the services.
        *paced_volume(), *options, "--entrypoint", "sh", site_image(), "-c", BOOT,
    )  # fmt: skip
    node.wait_booted()
    copy_source(folder / "dilocoxd")
    docker("cp", folder / "dilocoxd", f"{node.id}:/srv/")
    # The image's own user is not what is tested here.
    node.sh("userdel dilocoxd; rm -rf /var/lib/dilocoxd/*")


def install(node: Machine) -> None:
    """The documented command, with the wheels of this host instead of a package index."""
    node.sh(f"{IN_SOURCE} make install-systemd", timeout_s=600)
    user = node.sh("id dilocoxd")
    assert re.search(r"uid=[1-9]", user)
    say(f"installed: {user.strip()}, engine in {FOLDER}")


def make_run(node: Machine) -> None:
    """The run directory, made as the service's user."""
    docker("cp", corpus(), f"{node.id}:{TEXT}")
    options = " ".join(f"--set '{name}={value}'" for name, value in SETTINGS.items())
    node.sh(
        f"chown -R dilocoxd: /var/lib/dilocoxd && dilocoxd-admin start tiny --no-run --dir {RUN_DIR} {options}",
        timeout_s=300,
    )
