"""How fast a newcomer gets the shared state: `python -m tests.bench.catch_up [--mib 200] [--mbit 100]`.

Donors and newcomer are processes in network namespaces of their own; every donor's link is shaped with tbf. Prints one
JSON object per download, each as a share of what the links of its donors carry together, with headers and without them
(of payload: target >= 0.95), then the speed-up of three sources over one. Joining a running swarm is measured by
tests.bench.joiner. Needs root, ip and tc.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import end_when_told
from tests.harness.running.network_namespaces import PORT, Network
from tests.harness.running.sites import ROOT

DONORS = "abc"
FETCHER = "n"
HEADERS = 1448 / 1514
"""What TCP, IP and Ethernet leave of a link's rate at a frame of 1514 bytes (tbf counts whole frames)."""


class Peer:
    """One process of catch_up_peer.py."""

    def __init__(self, network: Network, name: str, folder: Path, mebibytes: int) -> None:
        role = "fetcher" if name == FETCHER else "donor"
        address = network.address(name)
        module = [sys.executable, "-m", "tests.harness.running.catch_up_peer"]
        command = [*module, role, str(folder / name), address, str(mebibytes)]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(name), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.peer = self.line()
        self.join_address = f"/ip4/{address}/tcp/{PORT}/p2p/{self.peer}"

    def line(self) -> str:
        """Its next line. Raises RuntimeError when it has died."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline().strip()
        if not text:
            raise RuntimeError(f"a peer ended with {self.process.wait(10)}")
        return text

    def ask(self, order: dict[str, object]) -> dict[str, float]:
        """One download."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.line())
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def measure(folder: Path, mebibytes: int, mbit: float, repetitions: int) -> list[dict[str, object]]:
    """One source and three, alternating."""
    rows: list[dict[str, object]] = []
    peers: list[Peer] = []
    with Network(f"ch{os.getpid() % 10000}cu", DONORS + FETCHER) as network:
        try:
            for name in DONORS + FETCHER:
                peers.append(Peer(network, name, folder, mebibytes))
            for name in DONORS:
                network.shape(name, mbit)
            addresses = [peer.join_address for peer in peers[:-1]]
            for number in range(repetitions):
                for count in (1, len(DONORS)):
                    found = peers[-1].ask({"donors": addresses[:count], "name": f"{number}-{count}"})
                    rate = 8e-6 * found["bytes"] / found["seconds"]
                    row = {"sources": count, "seconds": round(found["seconds"], 2), "mbit_per_s": round(rate, 1)}
                    row["share_of_links"] = round(rate / (count * mbit), 3)
                    row["share_of_payload_rate"] = round(rate / (count * mbit * HEADERS), 3)
                    rows.append(row | {"load_1min": round(os.getloadavg()[0], 1)})
                    print(json.dumps(rows[-1]), flush=True)
        finally:
            for peer in peers:
                peer.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    end_when_told()
    with tempfile.TemporaryDirectory(prefix="dilocoxd-catch-up-") as name:
        rows = measure(Path(name), arguments.mib, arguments.mbit, arguments.repetitions)
    best = {count: min(float(str(r["seconds"])) for r in rows if r["sources"] == count) for count in (1, len(DONORS))}
    print(json.dumps({"speed_up_of_three_sources": round(best[1] / best[len(DONORS)], 2)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
