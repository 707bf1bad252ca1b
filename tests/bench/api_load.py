"""What does polling cost? `python -m tests.bench.api_load`: 200 requests a second against a site that trains.

Two real sites on loopback, upload limited so that an exchange runs most of the time. Blocks with and without load
alternate, so that other load on the machine hits both alike. Trainers have the first core; daemons, p2pd, outer workers
and the client the second: the client's own work, which would run elsewhere in real life, does not take the trainers'
core. Prints one JSON object: inner steps per second with and without load side by side, memory of the daemon, its CPU
per request, and latencies. Targets (issue 5): ratio within 2%, memory below 20 MB more, p99 below 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from aiohttp import ClientSession, TCPConnector

from tests.bench import end_when_told
from tests.bench.paced import Pair, Setting, add_hidden_size, limit_for, run_pair
from tests.bench.slowdown import Block, arrange, pin
from tests.harness.running.sites import SiteProcess

RATE = 200
PATHS = (
    *("/v1/status",) * 8,
    *("/healthz",) * 3,
    *("/v1/peers",) * 3,
    *("/metrics",) * 2,
    "/v1/rounds?limit=20",
    "/v1/losses?points=500",
    "/v1/timeline/sites",
    "/v1/alerts",
)
"""What dashboards, probes and Prometheus ask, more or less."""


class Load:
    """Requests at a fixed rate, whatever the answers take."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self.latencies: list[float] = []
        self.statuses: Counter[int] = Counter()

    async def run(self, seconds: float) -> None:
        """Send for so long; latency counts from the moment the request was due."""
        clock = asyncio.get_running_loop().time
        start = clock()
        async with ClientSession(connector=TCPConnector(limit=50)) as session, asyncio.TaskGroup() as group:
            for number in range(int(seconds * RATE)):
                due = start + number / RATE
                await asyncio.sleep(max(0.0, due - clock()))
                group.create_task(self._one(session, PATHS[number % len(PATHS)], due))

    async def _one(self, session: ClientSession, path: str, due: float) -> None:
        async with session.get(self._base + path) as response:
            await response.read()
            self.statuses[response.status] += 1
        self.latencies.append(asyncio.get_running_loop().time() - due)


def steps_per_s(site: SiteProcess, blocks: list[Block], condition: str) -> list[float]:
    """Inner steps per second of each block."""
    times = [row[0] for row in site.get("/v1/losses")["inner"]]  # type: ignore[index]
    chosen = [block for block in blocks if block.condition == condition]
    return [sum(b.start <= at < b.end for at in times) / (b.end - b.start) for b in chosen]


def quantile(values: list[float], share: float) -> float:
    """Nearest-rank quantile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(pair: Pair, blocks: int, block_s: float) -> list[dict[str, Any]]:
    """Alternate without and with load; figures of the site that is asked."""
    asked = pair.members[0]
    for site in pair.members:
        arrange(site, "pinned")
    pin([os.getpid()], [1])
    assert asked.process is not None
    daemon, load = psutil.Process(asked.process.pid), Load(asked.port)
    memory: dict[str, list[int]] = {"off": [], "on": []}
    cpu: dict[str, float] = {"off": 0.0, "on": 0.0}
    stretches = []
    for number in range(2 * blocks):
        condition = "on" if number % 2 else "off"
        before, start = sum(daemon.cpu_times()[:2]), time.time()
        if condition == "on":
            asyncio.run(load.run(block_s))
        else:
            time.sleep(block_s)
        stretches.append(Block(condition, start, time.time()))
        cpu[condition] += sum(daemon.cpu_times()[:2]) - before
        memory[condition].append(daemon.memory_info().rss)
    rates = {c: [steps_per_s(site, stretches, c) for site in pair.members] for c in ("off", "on")}
    sums = {c: [sum(pair_of) for pair_of in zip(*found, strict=True)] for c, found in rates.items()}
    ratios = [on / off for on, off in zip(sums["on"], sums["off"], strict=True)]
    exchanging = [s for s in asked.get("/v1/timeline") or [] if s["kind"] == "exchange"]
    return [
        {
            "requests": len(load.latencies),
            "statuses": dict(load.statuses),
            "requests_per_s": round(len(load.latencies) / (blocks * block_s), 1),
            "steps_per_s_off": round(statistics.mean(sums["off"]), 3),
            "steps_per_s_on": round(statistics.mean(sums["on"]), 3),
            "ratio_of_means": round(statistics.mean(sums["on"]) / statistics.mean(sums["off"]), 4),
            "ratio_median_of_pairs": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "memory_mb_off": round(statistics.mean(memory["off"]) / 1e6, 1),
            "memory_mb_on": round(statistics.mean(memory["on"]) / 1e6, 1),
            "memory_mb_growth_max": round((max(memory["on"]) - memory["off"][0]) / 1e6, 1),
            "daemon_cpu_ms_per_request": round(1e3 * (cpu["on"] - cpu["off"]) / max(1, len(load.latencies)), 3),
            "daemon_cpu_share_off": round(cpu["off"] / (blocks * block_s), 4),
            "daemon_cpu_share_on": round(cpu["on"] / (blocks * block_s), 4),
            "p50_ms": round(1e3 * quantile(load.latencies, 0.5), 2),
            "p99_ms": round(1e3 * quantile(load.latencies, 0.99), 2),
            "max_ms": round(1e3 * max(load.latencies), 1),
            "exchanges": len(exchanging),
            "exchange_share": round(
                sum(
                    max(0.0, min(s["end"], stretches[-1].end) - max(s["start"], stretches[0].start)) for s in exchanging
                )
                / (stretches[-1].end - stretches[0].start),
                3,
            ),
            "load_average": round(os.getloadavg()[0], 2),
        }
    ]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=6, help="blocks with load; as many without")
    parser.add_argument("--block-s", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=40, help="inner steps of a phase")
    parser.add_argument("--phase-s", type=float, default=6.0, help="about what a phase takes on this machine")
    parser.add_argument("--payload", type=int, default=10_689_536, help="bytes a site sends per round")
    add_hidden_size(parser)
    options = parser.parse_args()
    end_when_told()
    limit = limit_for(0.8, options.phase_s, options.payload)
    setting = Setting("phase", options.steps, limit, hidden_size=options.hidden_size)
    with tempfile.TemporaryDirectory() as folder:
        figures = run_pair(Path(folder), setting, lambda pair: measure(pair, options.blocks, options.block_s))
    for one in figures:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
