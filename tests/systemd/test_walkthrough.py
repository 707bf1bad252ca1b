"""The systemd half of docs/operations/quickstart.md, on three machines that know of each other only what it says."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.containers.engine import docker, engine, say
from tests.containers.node import full_name, remove
from tests.containers.quickstart import PLACEHOLDER, Step, steps
from tests.harness.running.sites import wait_until
from tests.systemd.conftest import IN_SOURCE, Machine, boot

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]

NAMES = ("one", "two", "three")
PATIENCE_S = 400.0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """Three machines on one network, with a copy of the repository and nothing installed."""
    network = full_name("quickstart")
    with engine():
        remove(*NAMES)
        if network in docker("network", "ls", "--format", "{{.Name}}").split():
            docker("network", "rm", network)
        docker("network", "create", "--internal", network)
        found = {name: Machine(name) for name in NAMES}
        try:
            with ThreadPoolExecutor() as pool:
                booting = [
                    pool.submit(boot, node, tmp_path / node.name, "--network", network) for node in found.values()
                ]
            for boot_of_one in booting:
                boot_of_one.result()
            yield found
        finally:
            remove(*NAMES)
            docker("network", "rm", network)


def run_step(step: Step, machines: dict[str, Machine], address: str) -> str:
    """Output of a block; every command must succeed."""
    said = ""
    for name in step.machines:
        for command in step.script.splitlines():
            started = time.monotonic()
            said += machines[name].sh(f"{IN_SOURCE} {command.replace(PLACEHOLDER, address)}", timeout_s=600)
            say(f"{name}: {time.monotonic() - started:.0f} s: {command}")
    return said


def test_every_command_of_the_quickstart_for_systemd_leads_to_three_sites(machines: dict[str, Machine]) -> None:
    todo = [step for step in steps() if step.machines != ("host",)]
    *before, last = todo
    assert "systemctl stop" in last.script
    started, address = time.monotonic(), ""
    for step in before:
        said = run_step(step, machines, address)
        printed = re.search(r"^  dilocoxd join (\S+)$", said, re.M)
        if printed is not None and not address:
            address = printed[1]
    begun = max(node.wait_height(0, PATIENCE_S)["height"] for node in machines.values())

    def have_met() -> bool:
        """Where sites are starved of their processor by turns, none of the entries need be of all three."""
        joint = [row["contributors"] for row in machines["two"].rounds() if row["round"] >= begun]
        return len({one["peer"] for row in joint if len(row) > 1 for one in row}) == 3

    def explain() -> str:
        return "\n".join(machine.describe() for machine in machines.values())

    wait_until(have_met, "joint entries of three", PATIENCE_S, explain, poll_s=1.0)
    say(f"quickstart with systemd: entries of three sites {time.monotonic() - started:.0f} s after the first command")
    run_step(last, machines, address)
    for node in machines.values():
        assert node.show("dilocoxd", "Result") == "success"
        assert "Traceback" not in node.journal("dilocoxd")
