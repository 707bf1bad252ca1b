"""A site on three machines, each with a network of its own, and a site of one: how they are made and looked at."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.harness.running.network_namespaces import NamespacedSite, Network, namespaced
from tests.harness.running.run_directories import printed_address, share_authority
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.strikes import Fault
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
    fault: Fault
    """Of `three`."""
    parts: dict[str, int] = field(default_factory=dict)
    """Outer parts by node; none are 0."""
    layout: dict[str, str] = field(default_factory=dict)
    """Settings of `three`."""
    nodes: dict[str, NodeProcess] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    """What was measured, for people."""

    def start_node(self, name: str) -> NodeProcess:
        key = self.three.run_dir / "node.key"
        wait_until(key.exists, "the key", PATIENCE_S, self.three.describe)
        head, num_parts = f"{self.network.address('head')}:{PORT}", self.parts.get(name, 0)
        self.nodes[name] = NodeProcess(head, key, self.folder / name, num_parts, 1, self.network.namespace(name))
        return self.nodes[name]

    def stages(self) -> dict[str, int]:
        """Node -> stage that runs there."""
        told = (self.three.status().get("nodes") or {}).get("stages", [])
        where = {each["node"].rpartition("(")[2].rstrip(")"): each for each in told if each["state"] == "running"}
        names = {self.network.address(name): name for name in NODES}
        return {names[host]: each["stage"] for host, each in where.items()}

    def sends(self) -> dict[str, Any]:
        """What the node of the one part away sends itself (GET /v1/status)."""
        (part,) = self.three.says("nodes")["parts"]
        found: dict[str, Any] = part["sends"]
        return found

    def receives(self) -> dict[str, Any]:
        """What comes straight to the node of the one part away (GET /v1/status)."""
        (part,) = self.three.says("nodes")["parts"]
        found: dict[str, Any] = part["receives"]
        return found

    def counted(self, at: str, source: str) -> Callable[[], int]:
        """Bytes that one machine gets from another from now on, as the kernel there counts them."""
        rule = ("INPUT", "-s", self.network.address(source), "-p", "tcp")
        self.network.inside(at, "iptables", "-w", "-I", *rule)

        def counted() -> int:
            return int(self.network.inside(at, "iptables", "-w", "-nvxL", "INPUT").splitlines()[2].split()[1])

        return counted

    def listened(self, name: str) -> set[str]:
        """Addresses at which something listens on a machine."""
        lines = Path(f"/proc/{self.network.pids(name)[0]}/net/tcp").read_text().splitlines()[1:]
        heard = [line.split()[1].partition(":")[0] for line in lines if line.split()[3] == LISTENS]
        return {socket.inet_ntoa(bytes.fromhex(each)[::-1]) for each in heard}

    def until_missed(self, name: str, stage: int) -> None:
        """The site waits for this node, and for no other."""
        address, what = f"({self.network.address(name)}) with ", f"stage {stage}, gone since"

        def is_missed() -> bool:
            status = self.three.status()
            told = str(status.get("waiting_for"))
            return (
                address in told and what in told and told.count("gone since") == 1 and "node_missing" in _alerts(status)
            )

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

    def stop_and_count(self) -> int:
        """Stop both sites; no phase of `one` is missing in the chain. How many there are."""
        me = self.one.says("peer_id")
        assert self.three.stop() == 0
        assert self.one.stop() == 0
        assert_logs_agree(self.one, self.three)
        entries = [signed.entry for signed in log_of(self.one).entries()]
        phases = [each.phase for entry in entries for each in entry.contributions if each.peer == me]
        assert phases == list(range(len(phases)))
        return len(phases)


def _alerts(status: dict[str, list[dict[str, str]]]) -> list[str]:
    return [alert["code"] for alert in status.get("alerts", [])]


def _invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.exception is None, f"{result.exception}\n{result.output}"
    return result.output


def made_run(
    one: NamespacedSite, three: NamespacedSite, folder: Path, more: Mapping[str, str], run: Mapping[str, str]
) -> dict[str, str]:
    """Run directories of both, `three` with a stage on each node and `more` of site.toml; `run`: of run.toml. Its
    settings."""
    assert three.network is not None
    founder = founder_options(folder, inner_steps=4)
    agreed = [each for name, value in {"model.num_layers": "3", **run}.items() for each in ("--set", f"{name}={value}")]
    address = printed_address(_invoke("init", "tiny", *one.options(), *founder, *agreed))
    layout = {
        "network.bootstrap": f'["{address}"]',
        "parallel.pipeline": "3",
        "parallel.microbatches": "4",
        "cluster.stages": "2",
        "cluster.host": f'"{three.network.address("head")}"',
        **more,
    }
    _join(one, three, folder, layout)
    return layout


def _join(one: NamespacedSite, three: NamespacedSite, folder: Path, layout: Mapping[str, str]) -> None:
    settings = [each for name, value in layout.items() for each in ("--set", f"{name}={value}")]
    cache = ("--cache", str(folder / "cache"))
    _invoke("init", str(one.run_dir / "run.toml"), *three.options(), *cache, *settings)
    share_authority(one.run_dir, three.run_dir)


def join_anew(machines: Machines) -> None:
    """A run directory for `three` with the same settings, after it lost its own."""
    _join(machines.one, machines.three, machines.folder, machines.layout)


@contextlib.contextmanager
def running_machines(
    folder: Path,
    prefix: str,
    parts: Mapping[str, int],
    more: Mapping[str, str] | None = None,
    run: Mapping[str, str] | None = None,
) -> Iterator[Machines]:
    """Both sites and the nodes of `three`, started. `parts`: outer parts by node; `more`: of site.toml; `run`: of
    run.toml."""
    with namespaced(f"{prefix}{os.getpid() % 10000}", folder, ("one", "head", *NODES)) as (network, found):
        one, three, *_ = found
        more = {"cluster.outer_parts": str(sum(parts.values())), **(more or {})}
        layout = made_run(one, three, folder, more, run or {})
        machines = Machines(network, one, three, folder, Fault(three), dict(parts), layout)
        with sites(one, three):
            one.start()
            three.start()
            try:
                for name in NODES:
                    machines.start_node(name)
                yield machines
            finally:
                for node in machines.nodes.values():
                    with contextlib.suppress(ProcessLookupError):
                        node.process.kill()
