"""Payloads between two sites, by p2pd's streams and by data connections, in turn, over links of the test internet.

`python -m tests.bench.links.data_plane [--mbits 200,1000] [--mibs 64,192] [--rtts-ms 0,50,100,200] [--repetitions 3]
[--segments-kib 4096,256] [--p2pd-mib 16]`; a rate of 0 is a link without limit. MB/s are those of connections that have
carried as much before; `cold`: of new ones. `plain`: 16 TCP connections that do nothing else, on the same link: what it
carries beside whatever else this machine does. `line` is bytes / time / rate; `most` what it would be if nothing were
lost but the round trip of the last receipt. CPU is that of daemon and p2pd at each end, for 10^9 bytes: the sender's
while it sends, the receiver's from the order on, with what both do when nothing moves (0.5 to 4% of a core). `p2pd`:
one transfer, cold, of `--p2pd-mib`; so short and slow a one has little but that in its CPU, and stands for no warm one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import end_when_told
from tests.harness.internet.conditions import rtt
from tests.harness.internet.network import Internet
from tests.harness.internet.probes import bulk_bytes_per_s
from tests.harness.running.network_namespaces import PORT

PREFIX = f"ch{os.getpid() % 10000}dp"
PLAIN = 16
QUIET_RTT_S = 0.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """One order carried out."""

    mib: int
    seconds: float
    sender_cpu_s: float
    receiver_cpu_s: float

    @property
    def gigabytes(self) -> float:
        return self.mib * 1048576e-9

    @property
    def mb_per_s(self) -> float:
        return 1000 * self.gigabytes / self.seconds


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


def transfer(sender: Peer, receiver: Peer, mib: int, by: str, segment_kib: int) -> Transfer:
    """One payload, with what it cost."""
    before = receiver.order(cost=True)
    seconds = sender.order(send=mib, by=by, segment_kib=segment_kib)
    return Transfer(mib, seconds, sender.order(spent=True), receiver.order(cost=True) - before)


def middle(found: Sequence[Transfer], what: Callable[[Transfer], float]) -> float:
    return round(statistics.median(map(what, found)), 1)


@dataclass(frozen=True, slots=True)
class Cell:
    """One link."""

    mbit: float
    rtt_s: float
    mib: int
    p2pd_mib: int
    repetitions: int

    @property
    def name(self) -> str:
        return f"{self.mbit:g} Mbit/s, {1000 * self.rtt_s:g} ms"

    @property
    def most(self) -> float:
        """Of `line`."""
        line_s = self.mib * 8.388608 / self.mbit
        return line_s / (line_s + self.rtt_s)


def row(
    cell: Cell, segment_kib: int, p2pd: Sequence[Transfer], data: Sequence[Transfer], plain: float
) -> dict[str, Any]:
    """A line of the table."""
    warm = data[1:]
    speed = middle(warm, lambda one: one.mb_per_s)
    line = {"line": round(8 * speed / cell.mbit, 3), "most": round(cell.most, 3)} if cell.mbit else {}
    return {
        "link": cell.name,
        "segment": f"{segment_kib} KiB",
        "data MB/s": speed,
        **line,
        "plain MB/s": round(plain, 1),
        "of plain": round(speed / plain, 2),
        "cold MB/s": round(data[0].mb_per_s, 1),
        "CPU-s/GB sender": middle(warm, lambda one: one.sender_cpu_s / one.gigabytes),
        "receiver": middle(warm, lambda one: one.receiver_cpu_s / one.gigabytes),
        "p2pd MB/s": round(p2pd[-1].mb_per_s, 1),
        "p2pd CPU-s/GB sender": round(p2pd[-1].sender_cpu_s / p2pd[-1].gigabytes, 1),
        "p2pd receiver": round(p2pd[-1].receiver_cpu_s / p2pd[-1].gigabytes, 1),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def measured(cell: Cell, segments_kib: Sequence[int], folder: Path) -> None:
    """Print the rows of one link, on which everything is new."""
    with ExitStack() as stack:
        folder.mkdir()
        internet = stack.enter_context(Internet(PREFIX, "ab", rtt(QUIET_RTT_S)))
        sender, receiver = (stack.enter_context(Peer(internet, name, folder)) for name in "ab")
        sender.order(meet=receiver.address)
        if cell.mbit:
            internet.shape("a", cell.mbit)
            internet.shape("b", cell.mbit)
        internet.set(rtt(cell.rtt_s))
        for kib in segments_kib:
            p2pd = [transfer(sender, receiver, cell.p2pd_mib, "p2pd", kib)]
            data = [transfer(sender, receiver, cell.mib, "data", kib)]
            plain = []
            for _ in range(cell.repetitions):
                data.append(transfer(sender, receiver, cell.mib, "data", kib))
                plain.append(1e-6 * bulk_bytes_per_s(internet, "a", "b", cell.mib, PLAIN, is_warm=True))
            print(json.dumps(row(cell, kib, p2pd, data, statistics.median(plain))), flush=True)


def _rates(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What is asked for; ends the process with a sentence where payloads are not whole segments."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.links.data_plane", description=__doc__)
    parser.add_argument("--mbits", type=_rates, default=[200.0, 1000.0])
    parser.add_argument("--mibs", type=_numbers, default=[64, 192], help="one for each rate")
    parser.add_argument("--rtts-ms", type=_rates, default=[0.0, 50.0, 100.0, 200.0])
    parser.add_argument("--segments-kib", type=_numbers, default=[4096, 256])
    parser.add_argument("--p2pd-mib", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(arguments)
    if len(options.mbits) != len(options.mibs):
        parser.error("give as many rates in --mbits as lengths in --mibs")
    for kib in options.segments_kib:
        if kib <= 0:
            parser.error(f"--segments-kib {kib} is no length of a segment")
        for name, mib in [*(("--mibs", mib) for mib in options.mibs), ("--p2pd-mib", options.p2pd_mib)]:
            if mib <= 0 or 1024 * mib % kib:
                parser.error(f"{name} {mib} is no whole number of segments of {kib} KiB")
    return options


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        for mbit, mib in zip(options.mbits, options.mibs, strict=True):
            for milliseconds in options.rtts_ms:
                cell = Cell(mbit, milliseconds / 1000, mib, options.p2pd_mib, options.repetitions)
                measured(cell, options.segments_kib, Path(folder) / f"{mbit:g} {milliseconds:g}")


if __name__ == "__main__":
    end_when_told()
    main()
