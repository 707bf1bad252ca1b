"""Payloads between two sites, by p2pd's streams and by data connections, in turn, over links of the test internet.

`python -m tests.bench.links.data_plane [--mbits 200,1000] [--rtts-ms 0,50,100,200] [--mib 64]
[--repetitions 3]`; a rate of 0 is a link without limit. `line` is bytes / time / rate; CPU is that of daemon and p2pd
at each end, for 10^9 bytes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.harness.internet.conditions import rtt
from tests.harness.internet.network import Internet
from tests.harness.running.network_namespaces import PORT

PREFIX = f"ch{os.getpid() % 10000}dp"
WAYS = ("p2pd", "data")
QUIET_RTT_S = 0.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """One order carried out."""

    seconds: float
    sender_cpu_s: float
    receiver_cpu_s: float


class Peer:
    """A process at one end; a context manager."""

    def __init__(self, internet: Internet, name: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.harness.running.bulk_peer", str(folder / name)]
        inside = ["ip", "netns", "exec", internet.namespace(name), *command, internet.address(name), str(PORT)]
        self._process = subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._line()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *reason: object) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "a peer ended"
        return line

    def order(self, **what: object) -> float:
        """The answer to one order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return float(self._line())


def transfer(sender: Peer, receiver: Peer, mib: int, by: str) -> Transfer:
    """One payload, with what it cost."""
    before = sender.order(cost=True), receiver.order(cost=True)
    seconds = sender.order(send=mib, by=by)
    return Transfer(seconds, sender.order(cost=True) - before[0], receiver.order(cost=True) - before[1])


def row(shown_link: str, mbit: float, mib: int, found: dict[str, list[Transfer]]) -> str:
    """A line of the table."""
    cells = [shown_link]
    speeds = []
    for way in WAYS:
        seconds = statistics.median(one.seconds for one in found[way])
        gigabytes = mib * 1048576e-9
        speeds.append(1000 * gigabytes / seconds)
        cells.append(f"{speeds[-1]:.1f}")
        cells.append(f"{8 * speeds[-1] / mbit:.2f}" if mbit else "-")
        for side in ("sender_cpu_s", "receiver_cpu_s"):
            cells.append(f"{statistics.median(getattr(one, side) for one in found[way]) / gigabytes:.1f}")
    return "| " + " | ".join((*cells, f"{speeds[1] / speeds[0]:.1f}")) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbits", default="200,1000")
    parser.add_argument("--rtts-ms", default="0,50,100,200")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    columns = "".join(f" {way} MB/s | line | CPU-s/GB sender | receiver |" for way in WAYS)
    print(f"| link |{columns} ratio |\n|{'---|' * 10}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        internet = stack.enter_context(Internet(PREFIX, "ab", rtt(QUIET_RTT_S)))
        sender, receiver = (stack.enter_context(Peer(internet, name, folder)) for name in "ab")
        sender.order(meet=receiver.address)
        for mbit in map(float, options.mbits.split(",")):
            if mbit:
                internet.shape("a", mbit)
                internet.shape("b", mbit)
            for milliseconds in map(float, options.rtts_ms.split(",")):
                internet.set(rtt(milliseconds / 1000))
                found: dict[str, list[Transfer]] = {way: [] for way in WAYS}
                for _ in range(options.repetitions):
                    for way in WAYS:
                        found[way].append(transfer(sender, receiver, options.mib, way))
                print(row(f"{mbit:g} Mbit/s, {milliseconds:g} ms", mbit, options.mib, found), flush=True)


if __name__ == "__main__":
    main()
