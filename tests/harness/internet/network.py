"""Sites in namespaces joined by long links instead of a bridge: delay, jitter, loss, reordering, from one moment on.

Offers what `Network` offers: cuts by iptables, cables by the interface, `shape` by tbf (each site's upload). Packets go
through one process in user space (`forwarder.py`); with jumbo packets it carries about a gigabit per second. A lost
packet is a lost jumbo packet: TCP suffers as on a real link of that loss, but less often than with 1,500 bytes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.harness.internet.conditions import Conditions
from tests.harness.internet.namespaces import run_tool
from tests.harness.running.network_namespaces import BURST, QUEUE_MS, Network

MTU = 9000
SEED = 7


class Internet(Network):
    """Namespaces `<prefix><name>`, one TUN device in each; a context manager."""

    def __init__(self, prefix: str, names: Sequence[str], conditions: Conditions, mtu: int = MTU) -> None:
        super().__init__(prefix, names)
        self._mtu = mtu
        self._conditions = conditions
        self._forwarder: subprocess.Popen[str] | None = None

    def _build(self) -> None:
        for name in self.names:
            run_tool("ip", "netns", "add", self.namespace(name))
        sites = [f"{self.namespace(name)}={self.address(name)}" for name in self.names]
        command = [sys.executable, "-m", "tests.harness.internet.forwarder", str(SEED), str(self._mtu), *sites]
        self._forwarder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._forwarder.stdout is not None
        assert self._forwarder.stdout.readline() == "ready\n", "the forwarder could not make its devices"
        self.set(self._conditions)

    def _remove(self) -> None:
        if self._forwarder is not None:
            self._forwarder.communicate()  # closes stdin: it ends
        super()._remove()

    def pids(self, name: str) -> list[int]:
        """Processes of a site, but for the one that carries packets: it is in the namespace that it made last."""
        assert self._forwarder is not None
        return [pid for pid in super().pids(name) if pid != self._forwarder.pid]

    def set(self, conditions: Conditions) -> dict[str, Any]:
        """All links from now on; what was done to packets so far: address to {delivered, lost, overflowed}."""
        self._conditions = conditions
        assert self._forwarder is not None
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        self._forwarder.stdin.write(json.dumps(asdict(conditions)) + "\n")
        self._forwarder.stdin.flush()
        found: dict[str, Any] = json.loads(self._forwarder.stdout.readline())["counts"]
        return found

    def counts(self) -> dict[str, Any]:
        """What was done to packets so far."""
        return self.set(self._conditions)

    def shape(self, name: str, mbit_per_s: float) -> None:
        """Limit a site's upload to this rate; `Conditions.bit_per_s` limits what arrives at each site."""
        rate = ("tbf", "rate", f"{mbit_per_s:g}mbit", "burst", BURST, "latency", f"{QUEUE_MS}ms")
        self.inside(name, "tc", "qdisc", "replace", "dev", "eth0", "root", *rate)

    def unshape(self, name: str) -> None:
        """Full speed again."""
        self.inside(name, "tc", "qdisc", "del", "dev", "eth0", "root")
