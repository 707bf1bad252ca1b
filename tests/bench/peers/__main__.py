"""What others take for an exchange on shaped links, and to go on without a dead peer: `python -m tests.bench.peers`.

A ring of gloo (torch.distributed), hivemind's averager and, with `--ways gloo,hivemind,torchft`, torchft's manager over
gloo (`make .venv-peers/.installed`), with the same bytes, sites and links. `exchange_s`: median
time of an exchange; for hivemind with finding a group, which it does each time. `line`: bytes of a ring / time / rate.
`next_s`: kill -9 of a peer in the middle of an exchange (`--end frozen`: SIGSTOP) to the end of the survivors' next one
that began behind it; null: none within `--patience-s`.
What ours take: tests.bench.survivors, tests.bench.links. Prints a JSON object for each. Needs root, ip and tc.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from tests.bench.headline.ground import NAMES, shape
from tests.harness.running.network_namespaces import Network
from tests.harness.running.sites import ROOT, wait_until

WAYS = ("gloo", "hivemind")
OWN_PLACE = {"torchft": ROOT / ".venv-peers" / "bin" / "python"}
"""Interpreters of those that are no packages of dilocoxd; Makefile makes them."""
PATIENCE_S = 300.0
WARM_UP = 1


class Peer:
    """A peer in its namespace; a context manager."""

    def __init__(self, network: Network, name: str, log: IO[str], words: list[str]) -> None:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        python = str(OWN_PLACE.get(words[0], sys.executable))
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(name), python, "-m", "tests.bench.peers.peer", *words],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.lines: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()

    def kill(self) -> None:
        """With all its children: SIGKILL."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    def freeze(self) -> None:
        """All its processes; their kernel goes on answering."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def ready(self) -> str:
        """Where it can be reached."""
        wait_until(lambda: self.lines, "a peer that is ready", PATIENCE_S)
        return str(self.lines[0]["reached_at"])

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def done(self, group: int, since: float = 0.0) -> list[dict[str, Any]]:
        """Exchanges of so many peers that began after this moment."""
        return [line for line in self.lines[1:] if line["group"] == group and line["at"] - line["seconds"] > since]


def without_it(peers: list[Peer], since: float, patience_s: float) -> float | None:
    """Seconds until all of them have made an exchange among themselves that began after this moment; None: too long."""
    deadline = time.monotonic() + patience_s
    while not all(peer.done(len(peers), since) for peer in peers):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return round(max(peer.done(len(peers), since)[0]["at"] for peer in peers) - since, 2)


def measure(way: str, network: Network, options: argparse.Namespace, log: IO[str]) -> dict[str, Any]:
    """One row."""
    names, elements = network.names, options.mib << 18
    count = len(names)
    with ExitStack() as stack:
        peers: list[Peer] = []
        first = network.address(names[0])
        for number, name in enumerate(names):
            words = [way, network.address(name), first, str(number), str(count), str(elements)]
            peers.append(stack.enter_context(Peer(network, name, log, words)))
            if number == 0:
                first = peers[0].ready() or first
        for peer in peers:
            peer.ready()
        shape(network, "".join(names), options.mbit * 1e6)
        for peer in peers:
            peer.go()
        wanted = WARM_UP + options.rounds
        wait_until(lambda: len(peers[0].done(count)) >= wanted, f"{wanted} exchanges of {way}", PATIENCE_S)
        seconds = statistics.median(line["seconds"] for line in peers[0].done(count)[WARM_UP:])
        time.sleep(seconds / 2)
        (peers[-1].kill if options.end == "killed" else peers[-1].freeze)()
        next_s = without_it(peers[:-1], time.time(), options.patience_s)
    ring_bits = 8 * 2 * (count - 1) / count * 4 * elements
    return {
        "way": way,
        "sites": count,
        "mbit_per_s": options.mbit,
        "mib": options.mib,
        "exchange_s": round(seconds, 2),
        "line": round(ring_bits / seconds / (1e6 * options.mbit), 3),
        "end": options.end,
        "next_s": next_s,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--sites", type=int, default=3, help="3 to 8")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--mib", type=int, default=10, help="of fp32 at each peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--end", choices=("killed", "frozen"), default="killed", help="what happens to one of them")
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S, help="for the exchange without it")
    options = parser.parse_args()
    if not 3 <= options.sites <= len(NAMES):
        parser.error(f"--sites {options.sites}: use 3 to {len(NAMES)}; one is killed, and the others go on")
    for way in options.ways.split(","):
        if way in OWN_PLACE and not OWN_PLACE[way].exists():
            parser.error(f"--ways {way}: it is not installed; make .venv-peers/.installed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or peers would outlive a time-out
    for way in options.ways.split(","):
        with (
            tempfile.TemporaryDirectory(prefix="dilocoxd-peers-") as folder,
            (Path(folder) / "log").open("w+", encoding="utf-8") as log,
            Network(f"ch{os.getpid() % 10000}pe", NAMES[: options.sites]) as network,
        ):
            try:
                print(json.dumps(measure(way, network, options, log)), flush=True)
            except AssertionError:
                log.seek(0)
                sys.stderr.write(log.read()[-3000:])
                raise


if __name__ == "__main__":
    main()
