"""Torch's own DDP over the links of a cell, for so few steps that it ends in time, and how long they took."""

import json
import os
import select
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.headline.ground import Ground, shape
from tests.harness.running.network_namespaces import Network
from tests.harness.running.sites import ROOT

PORT = 29500
START_S = 600.0
"""Against hangs: imports of all ranks, and the tokens of the text."""
SLACK = 4.0
"""Steps may take so many times what they should before they are given up."""


@dataclass(frozen=True, slots=True)
class DdpRun:
    """Figures of one run."""

    num_parameters: int
    bit_per_s: float
    work_s: float
    """CPU work of a step, of which the rest of its length is a pause."""
    steps_s: tuple[float, ...]
    curve: tuple[tuple[float, float], ...]
    """(seconds since the start, validation loss)"""

    @property
    def step_s(self) -> float:
        """Median; tokens per second are those of steps like this for ever: an extrapolation from a few."""
        return statistics.median(self.steps_s)


class RankProcess:
    """One rank, in its site's namespace; a context manager."""

    def __init__(self, network: Network, name: str, arguments: list[str]) -> None:
        inside = ["ip", "netns", "exec", network.namespace(name), sys.executable, "-m", "tests.bench.headline.rank"]
        place = {"MASTER_ADDR": network.address(network.names[0]), "MASTER_PORT": str(PORT)}
        environment = {**os.environ, **place, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*inside, *arguments], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )  # without a buffer: what select sees is all there is

    def __enter__(self) -> "RankProcess":
        return self

    def __exit__(self, *reason: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self, patience_s: float) -> dict[str, Any]:
        """Its next line. Raises RuntimeError when it has died or says nothing for so long."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], patience_s)[0]:
            raise RuntimeError(f"a rank of DDP said nothing for {patience_s:.0f} s")
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"a rank of DDP ended with {self.process.wait(10)}")
        found: dict[str, Any] = json.loads(text)
        return found

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()


def steps_within(ground: Ground, steps: int, limit_s: float) -> int:
    """How many of `steps` there is time for, at least one."""
    return max(1, min(steps, int(limit_s / ((ground.ratio + 1) * ground.step_s))))


def run_ddp(network: Network, ground: Ground, run_dir: Path, steps: int, limit_s: float) -> DdpRun:
    """Train on the model of this run directory. Links are free until all ranks have met. Raises RuntimeError."""
    num_steps = steps_within(ground, steps, limit_s)
    told = [str(ground.num_sites), str(num_steps), str(ground.step_s)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(RankProcess(network, name, [str(run_dir), str(rank), *told]))
            for rank, name in enumerate(ground.names)
        ]
        ready = [rank.line(START_S) for rank in ranks]
        bit_per_s = ground.bit_per_s(ready[0]["parameters"])
        shape(network, ground.names, bit_per_s)
        for rank in ranks:
            rank.go()
        patience_s = 60.0 + SLACK * (ground.ratio + 1) * ground.step_s
        began, lines = time.monotonic(), []
        for _ in range(num_steps):
            lines.append(ranks[0].line(patience_s))
            if time.monotonic() - began > SLACK * limit_s:
                break  # fewer steps than were asked for; what there is counts
    at, curve = 0.0, [(0.0, ready[0]["loss"])]
    for line in lines:
        at += line["seconds"]
        curve.append((at, line["loss"]))
    seconds = tuple(line["seconds"] for line in lines)
    return DdpRun(ready[0]["parameters"], bit_per_s, ready[0]["work_s"], seconds, tuple(curve))
