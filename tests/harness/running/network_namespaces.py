"""A small internet for one test: each site in a network namespace of its own, joined by a bridge in another one.

Nothing leaves these namespaces. Links are cut silently (iptables DROP) or loudly (interface down), between all or two
sites, and shaped with tbf. Needs root, ip, iptables and tc. Kernel facts: netem does not exist on the machines that
this was written for; links with latency and loss are in tests/harness/internet.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.internet.namespaces import Namespaces, enter_namespace, run_tool
from tests.harness.running.sites import SiteProcess, get_json

PORT, API_PORT = 31337, 8080
"""The same at every site: each has a network of its own."""
BURST = "256kb"
QUEUE_MS = 200


class Network(Namespaces):
    """Namespaces `<prefix><name>` for the sites and `<prefix>hub` with the bridge; a context manager."""

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        super().__init__(prefix)
        self.names = tuple(names)
        self.hub = self.namespace("hub")

    def address(self, name: str) -> str:
        """IP address of a site; the same numbers in every Network."""
        return f"10.77.0.{1 + self.names.index(name)}"

    def _spaces(self) -> Sequence[str]:
        return (*self.names, "hub")

    def _build(self) -> None:
        self._add_spaces()
        self._add_bridge("hub")
        for name in self.names:
            self._plug_in(name, self.address(name), "hub")

    def inside_hub(self, *command: str) -> str:
        """Run a command where the bridge is."""
        return run_tool("ip", "netns", "exec", self.hub, *command)

    def pids(self, name: str) -> list[int]:
        """Processes that run in a site's namespace."""
        return [int(line) for line in run_tool("ip", "netns", "pids", self.namespace(name)).split()]

    # --- faults ---

    def cut(self, name: str, others: Sequence[str] = ()) -> None:
        """Drop every packet between `name` and `others` (default: everybody), both ways, silently."""
        for rule in self._rules(name, others):
            self.inside(name, "iptables", "-w", "-A", *rule)

    def heal(self, name: str) -> None:
        """Undo all cuts that were made at `name`."""
        self.inside(name, "iptables", "-w", "-F")

    def _rules(self, name: str, others: Sequence[str]) -> list[tuple[str, ...]]:
        if not others:
            return [("INPUT", "-i", "eth0", "-j", "DROP"), ("OUTPUT", "-o", "eth0", "-j", "DROP")]
        rules: list[tuple[str, ...]] = []
        for other in others:
            rules.append(("INPUT", "-s", self.address(other), "-j", "DROP"))
            rules.append(("OUTPUT", "-d", self.address(other), "-j", "DROP"))
        return rules

    def split(self, group: Sequence[str]) -> None:
        """Partition: `group` on one side, everybody else on the other."""
        others = [name for name in self.names if name not in group]
        for name in group:
            self.cut(name, others)

    def unplug(self, name: str) -> None:
        """Take the interface down, as if the cable were pulled."""
        self.inside(name, "ip", "link", "set", "eth0", "down")

    def plug(self, name: str) -> None:
        """Put the cable back."""
        self.inside(name, "ip", "link", "set", "eth0", "up")

    def shape(self, name: str, mbit_per_s: float) -> None:
        """Limit a site's link to this rate in each direction."""
        rate = ("tbf", "rate", f"{mbit_per_s:g}mbit", "burst", BURST, "latency", f"{QUEUE_MS}ms")
        self.inside(name, "tc", "qdisc", "replace", "dev", "eth0", "root", *rate)
        self.inside_hub("tc", "qdisc", "replace", "dev", f"p{name}", "root", *rate)

    def unshape(self, name: str) -> None:
        """Full speed again."""
        self.inside(name, "tc", "qdisc", "del", "dev", "eth0", "root")
        self.inside_hub("tc", "qdisc", "del", "dev", f"p{name}", "root")


@dataclass
class NamespacedSite(SiteProcess):
    """A site whose processes, and whose API, live in a namespace; asking it does not cross the link that is cut."""

    network: Network | None = None
    _asker: ThreadPoolExecutor | None = field(default=None, repr=False)

    @property
    def namespace(self) -> str:
        assert self.network is not None
        return self.network.namespace(self.name)

    def get(self, path: str) -> Any | None:
        """As of any site; a thread inside the namespace asks."""
        if self._asker is None:
            self._asker = ThreadPoolExecutor(1, f"ask-{self.name}", enter_namespace, (self.namespace,))
        return self._asker.submit(get_json, f"http://127.0.0.1:{self.port}{path}", self.answer_s).result()

    def options(self) -> list[str]:
        """What `init`, `start` and `join` need to know about the place."""
        assert self.network is not None
        place = ["--host", self.network.address(self.name), "--port", str(PORT), "--api-port", str(API_PORT)]
        return ["--dir", str(self.run_dir), *place, "--set", "parallel.threads_per_rank=1"]


@contextlib.contextmanager
def namespaced(prefix: str, folder: Path, names: Sequence[str]) -> Iterator[tuple[Network, list[NamespacedSite]]]:
    """A network and its sites, none of which has been started; the caller ends their processes (`sites`)."""
    with Network(prefix, names) as network:
        yield network, [NamespacedSite(name, folder / name, API_PORT, network=network) for name in names]
