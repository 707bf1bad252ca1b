"""A site whose three stages train on three machines, each with a network of its own, and a site of one: one model.

Real daemons and real `dilocoxd node`s. What is lost, and comes back: a node with all that ran there and its disk, the
daemon of the head, a cable. Each time the site says whom it misses, nobody trains alone, and the other site goes on.
The tests share the sites, which run on from one to the next.
"""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.harness.running.network_namespaces import NamespacedSite, Network, namespaced
from tests.harness.running.run_directories import printed_address, share_authority
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.training import (
    PATIENCE_S,
    assert_logs_agree,
    assert_states_agree,
    founder_options,
    log_of,
    wait_contributions_after,
    wait_joint_round,
)
from tests.integration.nodes.node_process import NodeProcess

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PORT = 31340
NODES = ("n1", "n2")
LISTENS = "0A"
"""State of a socket in /proc/net/tcp."""


@dataclass
class Machines:
    """Site `one`, and site `three` with its nodes."""

    network: Network
    one: NamespacedSite
    three: NamespacedSite
    folder: Path
    nodes: dict[str, NodeProcess] = field(default_factory=dict)

    def start_node(self, name: str) -> NodeProcess:
        key = self.three.run_dir / "node.key"
        wait_until(key.exists, "the key", PATIENCE_S, self.three.describe)
        head = f"{self.network.address('head')}:{PORT}"
        self.nodes[name] = NodeProcess(head, key, self.folder / name, 0, 1, self.network.namespace(name))
        return self.nodes[name]

    def stages(self) -> dict[str, int]:
        """Node -> stage that runs there."""
        told = (self.three.status().get("nodes") or {}).get("stages", [])
        where = {each["node"].rpartition("(")[2].rstrip(")"): each for each in told if each["state"] == "running"}
        names = {self.network.address(name): name for name in NODES}
        return {names[host]: each["stage"] for host, each in where.items()}

    def listened(self, name: str) -> set[str]:
        """Addresses at which something listens on a machine."""
        lines = Path(f"/proc/{self.network.pids(name)[0]}/net/tcp").read_text().splitlines()[1:]
        heard = [line.split()[1].partition(":")[0] for line in lines if line.split()[3] == LISTENS]
        return {socket.inet_ntoa(bytes.fromhex(each)[::-1]) for each in heard}

    def until_missed(self, name: str, stage: int) -> None:
        """The site waits for this node, and for no other."""
        address = f"({self.network.address(name)}) with stage {stage}, gone since"

        def is_missed() -> bool:
            status = self.three.status()
            told = str(status.get("waiting_for"))
            return address in told and told.count("gone since") == 1 and "node_missing" in _alerts(status)

        wait_until(is_missed, f"{name} is missed", PATIENCE_S, self.three.describe)

    def until_nobody_trains(self) -> None:
        for node in self.nodes.values():
            node.until(lambda each=node: not each.trainers(), "nobody trains alone")  # type: ignore[misc]

    def until_back(self) -> None:
        """Both sites are in an entry that is yet to come, and have one state."""
        wait_contributions_after(self.three, self.one.says("height"))
        wait_joint_round([self.one, self.three])
        assert_states_agree(self.one, self.three)
        assert set(self.stages()) == set(NODES)


def _alerts(status: dict[str, list[dict[str, str]]]) -> list[str]:
    return [alert["code"] for alert in status.get("alerts", [])]


def made_run(one: NamespacedSite, three: NamespacedSite, folder: Path) -> None:
    """Run directories of both, `three` with a stage on each node."""
    runner = CliRunner()

    def invoke(*arguments: str) -> str:
        result = runner.invoke(cli, arguments, standalone_mode=False)
        assert result.exception is None, f"{result.exception}\n{result.output}"
        return result.output

    assert three.network is not None
    founder = founder_options(folder, inner_steps=8)
    address = printed_address(invoke("init", "tiny", *one.options(), *founder, "--set", "model.num_layers=3"))
    layout = {
        "network.bootstrap": f'["{address}"]',
        "parallel.pipeline": "3",
        "parallel.microbatches": "4",
        "cluster.stages": "2",
        "cluster.host": f'"{three.network.address("head")}"',
    }
    settings = [each for name, value in layout.items() for each in ("--set", f"{name}={value}")]
    cache = ("--cache", str(folder / "cache"))
    invoke("init", str(one.run_dir / "run.toml"), *three.options(), *cache, *settings)
    share_authority(one.run_dir, three.run_dir)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("three")
    with namespaced(f"tm{os.getpid() % 10000}", folder, ("one", "head", *NODES)) as (network, (one, three, *_)):
        made_run(one, three, folder)
        found = Machines(network, one, three, folder)
        with sites(one, three):
            one.start()
            three.start()
            try:
                for name in NODES:
                    found.start_node(name)
                yield found
            finally:
                for node in found.nodes.values():
                    with contextlib.suppress(ProcessLookupError):
                        node.process.kill()


def test_site_on_three_machines_and_site_of_one_train_one_model(machines: Machines) -> None:
    wait_joint_round([machines.one, machines.three])
    machines.until_back()
    assert sorted(machines.stages().values()) == [1, 2]
    for name in NODES:
        assert machines.listened(name) == {machines.network.address(name)}, "what gloo says there is not sealed"
    assert "0.0.0.0" not in machines.listened("head")


def test_node_that_loses_its_processes_and_its_disk_is_named_and_replaced(machines: Machines) -> None:
    stage = machines.stages()["n1"]
    machines.nodes["n1"].kill()
    wait_until(lambda: not machines.network.pids("n1"), "all that ran there has ended", PATIENCE_S)
    shutil.rmtree(machines.folder / "n1")
    machines.until_missed("n1", stage)
    machines.until_nobody_trains()
    machines.one.wait_height(machines.one.says("height") + 2, PATIENCE_S)  # the other site goes on
    machines.start_node("n1")
    machines.until_back()


def test_head_that_is_killed_leaves_nobody_training_and_goes_on(machines: Machines) -> None:
    three = machines.three
    assert three.process is not None
    os.kill(three.process.pid, signal.SIGKILL)
    three.process.wait()
    wait_until(lambda: not machines.network.pids("head"), "all of the head has ended", PATIENCE_S)
    machines.until_nobody_trains()
    three.start()
    machines.until_back()


def test_node_whose_cable_is_cut_is_named_and_comes_back_by_itself(machines: Machines) -> None:
    stage = machines.stages()["n2"]
    machines.network.cut("n2")
    machines.until_missed("n2", stage)
    machines.until_nobody_trains()
    machines.network.heal("n2")
    machines.until_back()


def test_no_phase_of_the_site_of_one_was_lost(machines: Machines) -> None:
    """The last: it stops both."""
    me = machines.one.says("peer_id")
    assert machines.three.stop() == 0
    assert machines.one.stop() == 0
    assert_logs_agree(machines.one, machines.three)
    entries = [signed.entry for signed in log_of(machines.one).entries()]
    phases = [each.phase for entry in entries for each in entry.contributions if each.peer == me]
    assert phases == list(range(len(phases)))
