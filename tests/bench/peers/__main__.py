"""What others take for an exchange on shaped links, and to go on without a dead peer: `python -m tests.bench.peers`.

A ring of gloo (torch.distributed), hivemind's averager and, with `--ways gloo,hivemind,torchft`, torchft's manager over
gloo (`make .venv-peers/.installed`), with the same bytes, sites and links. `exchange_s`: median
time of an exchange; for hivemind with finding a group, which it does each time. `line`: bytes of a ring / time / rate.
`next_s`: kill -9 of a peer in the middle of an exchange (`frozen`: SIGSTOP) to the end of the survivors' next one
that began behind it; `joined`: start of one peer more to the end of its first exchange with all others, who give it
what state they have; null: none within `--patience-s`. A plain ring of gloo has no way to join, and waits for a frozen
peer for its time-out. `told`: of the survivors that saw the end of the exchange that was broken, in all turns, those
who were told that it failed; `same`: whether they had one state then.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.bench import end_when_told
from tests.bench.headline.ground import NAMES, shape
from tests.harness.running.network_namespaces import Network
from tests.harness.running.sites import ROOT, wait_until

WAYS = ("gloo", "hivemind")
ENDS = ("killed", "frozen", "joined")
WITHOUT_WAY = {("gloo", "joined")}
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


@dataclass(frozen=True, slots=True)
class Found:
    """One turn."""

    seconds: float
    """Of an exchange, the median."""
    next_s: float | None
    broken: tuple[dict[str, Any], ...] = ()
    """What survivors said of the exchange that was broken."""


def broken_at(peers: list[Peer], since: float) -> tuple[dict[str, Any], ...]:
    """What each of them said of the exchange that was under way at this moment."""
    found = ([line for line in peer.lines[1:] if line["at"] - line["seconds"] <= since < line["at"]] for peer in peers)
    return tuple(lines[0] for lines in found if lines)


def with_it(newcomer: Peer, size: int, since: float, patience_s: float) -> float | None:
    """Seconds from this moment until a newcomer has made an exchange with so many peers; None: too long."""
    deadline = time.monotonic() + patience_s
    while not newcomer.done(size):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return round(newcomer.done(size)[0]["at"] - since, 2)


def measure(way: str, end: str, network: Network, options: argparse.Namespace, log: IO[str]) -> Found:
    """One turn; a newcomer has the last of the namespaces."""
    names, elements = network.names, options.mib << 18
    count = len(names) - (end == "joined")
    with ExitStack() as stack:
        peers: list[Peer] = []
        first = network.address(names[0])

        def started(number: int) -> Peer:
            words = [
                way,
                network.address(names[number]),
                first,
                str(number),
                str(len(names)),
                str(count),
                str(elements),
            ]
            return stack.enter_context(Peer(network, names[number], log, words))

        for number in range(count):
            peers.append(started(number))
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
        if end == "joined":
            since = time.time()
            newcomer = started(count)
            newcomer.ready()
            newcomer.go()
            return Found(seconds, with_it(newcomer, count + 1, since, options.patience_s))
        before = time.time()  # a kill is waited for: the others may be told before that is over
        (peers[-1].kill if end == "killed" else peers[-1].freeze)()
        next_s = without_it(peers[:-1], time.time(), options.patience_s)
        return Found(seconds, next_s, broken_at(peers[:-1], before))


def row(way: str, end: str, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of so many turns, each with peers of its own."""
    count, found = options.sites, list[Found]()
    for _ in range(options.turns):
        with (
            tempfile.TemporaryDirectory(prefix="dilocoxd-peers-") as folder,
            (Path(folder) / "log").open("w+", encoding="utf-8") as log,
            Network(f"ch{os.getpid() % 10000}pe", NAMES[: count + (end == "joined")]) as network,
        ):
            try:
                found.append(measure(way, end, network, options, log))
            except AssertionError:
                log.seek(0)
                sys.stderr.write(log.read()[-3000:])
                raise
    seconds = statistics.median(one.seconds for one in found)
    nexts = [one.next_s for one in found if one.next_s is not None]
    said = [line["group"] != count for one in found for line in one.broken]
    ring_bits = 8 * 2 * (count - 1) / count * 4 * (options.mib << 18)
    return {
        "way": way,
        "sites": count,
        "mbit_per_s": options.mbit,
        "mib": options.mib,
        "exchange_s": round(seconds, 2),
        "line": round(ring_bits / seconds / (1e6 * options.mbit), 3),
        "end": end,
        "turns": options.turns,
        "next_s": round(statistics.median(nexts), 2) if len(nexts) == len(found) else None,
        "told": f"{sum(said)} of {len(said)}",
        "same": all(len({line["state"] for line in one.broken}) < 2 for one in found) if said else None,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--sites", type=int, default=3, help="3 to 7")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--mib", type=int, default=10, help="of fp32 at each peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ends", default="killed", help="what happens then: some of killed,frozen,joined")
    parser.add_argument("--turns", type=int, default=1, help="of each, for medians")
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S, help="for the exchange behind it")
    options = parser.parse_args()
    if not 3 <= options.sites < len(NAMES):
        parser.error(f"--sites {options.sites}: use 3 to {len(NAMES) - 1}; one is killed, or one more comes")
    ways, ends = options.ways.split(","), options.ends.split(",")
    if unknown := sorted(set(ends) - set(ENDS)):
        parser.error(f"--ends {','.join(unknown)}: use some of {','.join(ENDS)}")
    for way in ways:
        if way in OWN_PLACE and not OWN_PLACE[way].exists():
            parser.error(f"--ways {way}: it is not installed; make .venv-peers/.installed")
    end_when_told()
    for way in ways:
        for end in ends:
            if (way, end) not in WITHOUT_WAY:
                print(json.dumps(row(way, end, options)), flush=True)


if __name__ == "__main__":
    main()
