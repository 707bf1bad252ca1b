"""What the start of a generation of trainers costs, three ways in turn: `python -m tests.bench.restarts.generations
[TIMES]`.

`torchrun`: a fresh agent and fresh ranks, each importing torch (how it was). `elastic, fork server`: torch's own agent,
long-lived, with its fork server. `ours`: the product's fork server. A generation is started when all its ranks have
joined gloo and summed a tensor. CPU is of all processes; memory is the proportional share (PSS) of the ranks and of
what stands above them. Prints one Markdown table, and the ratios to `ours`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.bench import end_when_told
from tests.harness.outer_worker.forks import OUTER, TRAINER, Forks

NUM_RANKS = 2
TIMES = 5
RANK = "tests.bench.restarts.rank"
ELASTIC = (sys.executable, "-m", "tests.bench.restarts.elastic", str(NUM_RANKS))


@dataclass(frozen=True)
class Start:
    """One generation."""

    seconds: float
    cpu_s: float
    rank_pss_mb: float
    above_pss_mb: float


class Way:
    """Starts generations in one of the ways."""

    def __init__(self, name: str, start: Callable[[Path], None], cpu_s: Callable[[], float]) -> None:
        self.name = name
        self.starts: list[Start] = []
        self._start = start
        self._cpu_s = cpu_s

    def once(self, folder: Path) -> None:
        """One generation, from the order to the last rank's sum."""
        out = folder / f"{self.name.replace(' ', '-')}-{len(self.starts)}"
        out.mkdir()
        cpu_s, began = self._cpu_s(), time.time()
        self._start(out)
        found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in out.glob("rank*.json")]
        assert len(found) == NUM_RANKS, f"{self.name}: {len(found)} ranks"
        self.starts.append(
            Start(
                max(each["joined"] for each in found) - began,
                self._cpu_s() - cpu_s,
                sum(each["pss_mb"] for each in found),
                found[0]["above_pss_mb"],
            )
        )


def torchrun(out: Path) -> None:
    """How it was, but for the wrapper around each rank."""
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
         "--max-restarts", "0", "--nproc-per-node", str(NUM_RANKS), "-m", RANK],
        check=True, env={**os.environ, "BENCH_OUT": str(out)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def children_cpu_s() -> float:
    """Of children that have ended and been waited for."""
    times = os.times()
    return times.children_user + times.children_system


def tree_cpu_s(pid: int) -> float:
    """Of a process, its living children and those that it has waited for."""
    total = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        total += sum(process.cpu_times()[:4])
    return total


def elastic(stack: ExitStack) -> Way:
    """Torch's agent in a process of its own; a line in starts a generation, a line out says that it is over."""
    agent = stack.enter_context(
        subprocess.Popen(ELASTIC, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    )
    assert agent.stdin is not None and agent.stdout is not None
    orders, answers = agent.stdin, agent.stdout
    stack.callback(orders.close)

    def start(out: Path) -> None:
        orders.write(f"{out}\n")
        orders.flush()
        assert answers.readline() == "over\n"

    return Way("elastic, fork server", start, lambda: tree_cpu_s(agent.pid))


def ours(stack: ExitStack) -> Way:
    """The product's fork server."""
    forks = stack.enter_context(Forks(TRAINER, OUTER))

    def start(out: Path) -> None:
        ranks = forks.ranks(RANK, {"BENCH_OUT": str(out)}, NUM_RANKS)
        assert [rank.wait() for rank in ranks] == [0] * NUM_RANKS

    return Way("ours", start, lambda: tree_cpu_s(forks.pid))


def table(ways: list[Way]) -> str:
    """Medians, and the ratios to the last way."""
    lines = [
        "| way | start s | CPU s | ranks PSS MB | above PSS MB | start x | CPU x |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [
        [statistics.median(getattr(start, name) for start in way.starts) for name in Start.__dataclass_fields__]
        for way in ways
    ]
    for way, (seconds, cpu_s, ranks, above) in zip(ways, rows, strict=True):
        ratios = f"{seconds / rows[-1][0]:.0f} | {cpu_s / rows[-1][1]:.0f}"
        lines.append(f"| {way.name} | {seconds:.2f} | {cpu_s:.2f} | {ranks:.0f} | {above:.0f} | {ratios} |")
    return "\n".join(lines)


def main(times: int) -> None:
    """In turn, so that a load that comes and goes meets all of them."""
    os.environ["BENCH_PID"] = str(os.getpid())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="generations-")))
        ways = [Way("torchrun", torchrun, children_cpu_s), elastic(stack), ours(stack)]
        for way in ways[1:]:
            way.once(folder)  # the first one waits for the imports
            way.starts.clear()
            (folder / f"{way.name.replace(' ', '-')}-0").rename(folder / f"{way.name}-cold")
        for _ in range(times):
            for way in ways:
                way.once(folder)
        print(f"{NUM_RANKS} ranks, {times} generations each, load {os.getloadavg()[0]:.1f}")
        print(table(ways))


if __name__ == "__main__":
    end_when_told()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES)
