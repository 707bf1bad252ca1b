"""How much slower are inner steps while an exchange runs? `python -m tests.bench.slowdown`.

Two real sites on loopback, upload limited so that the exchange takes about half a phase: every phase has steps with
and without an exchange, side by side, so that other load on the machine hits both alike. Conditions alternate in one
run: `pinned` = both trainers on the first core, daemons, p2pd and outer workers on the second (equal shares for the
trainers whatever the exchange does, apart from memory and caches); `free` = everything anywhere, with the niceness of
the product. Prints one JSON object per condition and site; targets: ratio < 1.03 pinned, < 1.10 free. Payloads are fp32
unless `--codec int2` says that of the strategy `default`; the limit of upload is such that they take about half a phase
(of int2 most is what the limit lets through at once: `exchange_to_phase` says what it was).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench import end_when_told
from tests.bench.paced import Pair, Setting, add_hidden_size, limit_for, pid_of, run_pair
from tests.harness.running.sites import SiteProcess

CONDITIONS = ("pinned", "free")
BITS = {"fp32": 32.0, "int4": 4.125, "int2": 2.125}
"""A value's, in a payload."""
FP32_BYTES = 10_689_536
"""A site sends a round, of the model with HIDDEN_SIZE and two sites."""


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the run under one condition."""

    condition: str
    start: float
    end: float


def pin(pids: Iterable[int], cores: Collection[int]) -> None:
    """All threads of these processes; children and threads that come later inherit it."""
    for pid in pids:
        pinned: set[Path] = set()
        while new := set(Path(f"/proc/{pid}/task").iterdir()) - pinned:
            for thread in new:
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.sched_setaffinity(int(thread.name), cores)
            pinned |= new


def arrange(site: SiteProcess, condition: str) -> None:
    """Put the site's processes where the condition wants them."""
    assert site.process is not None
    every = range(os.cpu_count() or 1)
    trainers, others = ([0], [1]) if condition == "pinned" else (every, every)
    pin(pid_of(site, "trainer"), trainers)
    pin([site.process.pid, *pid_of(site, "p2pd"), *pid_of(site, "outer")], others)


def alternate(pair: Pair, blocks: int, rounds: int, limit_s: float) -> list[dict[str, Any]]:
    """Conditions in turn, `rounds` rounds each."""
    stretches = []
    for number in range(blocks):
        condition = CONDITIONS[number % len(CONDITIONS)]
        for site in pair.members:
            arrange(site, condition)
        start = time.time()
        height = pair.members[0].status()["height"]
        deadline = time.monotonic() + limit_s
        while pair.members[0].status().get("height", 0) < height + rounds and time.monotonic() < deadline:
            time.sleep(0.5)
        stretches.append(Block(condition, start, time.time()))
    return [
        steps_of(site, [block for block in stretches if block.condition == condition]) | {"condition": condition}
        for condition in CONDITIONS
        for site in pair.members
    ] + [pair.figures(site) for site in pair.members]


def steps_of(site: SiteProcess, blocks: list[Block]) -> dict[str, Any]:
    """Durations of inner steps inside and outside of exchanges, and the ratio."""
    times = [row[0] for row in site.get("/v1/losses")["inner"]]  # type: ignore[index]
    spans = [span for span in site.get("/v1/timeline") or [] if span["kind"] in ("exchange", "apply", "idle")]
    groups: dict[str, list[float]] = {"with": [], "without": []}
    by_minute: dict[int, dict[str, list[float]]] = defaultdict(lambda: {"with": [], "without": []})
    for start, end in pairwise(times):
        if not any(block.start <= start and end <= block.end for block in blocks):
            continue
        inside = [span for span in spans if span["start"] <= start and end <= span["end"]]
        touched = [span for span in spans if span["start"] < end and start < span["end"]]
        if any(span["kind"] == "exchange" for span in inside):
            kind = "with"
        elif not touched:
            kind = "without"
        else:
            continue
        groups[kind].append(end - start)
        by_minute[int(start // 20)][kind].append(end - start)
    near = [
        statistics.median(part["with"]) / statistics.median(part["without"])
        for part in by_minute.values()
        if min(len(part["with"]), len(part["without"])) >= 5
    ]
    medians = {kind: statistics.median(values) if values else None for kind, values in groups.items()}
    both = medians["with"] is not None and medians["without"] is not None
    return {
        "site": site.name,
        "steps_with": len(groups["with"]),
        "steps_without": len(groups["without"]),
        "step_ms_with": round(1e3 * medians["with"], 1) if medians["with"] else None,
        "step_ms_without": round(1e3 * medians["without"], 1) if medians["without"] else None,
        "ratio": round(medians["with"] / medians["without"], 3) if both else None,  # type: ignore[operator]
        "ratio_of_neighbours": round(statistics.median(near), 3) if near else None,
        "windows": len(near),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--phase-s", type=float, required=True, help="Phase time that tests.bench.overlap measured.")
    parser.add_argument("--payload", type=int, help="Bytes sent per round; default: by codec, for --hidden-size 256.")
    parser.add_argument("--codec", choices=BITS, default="fp32")
    parser.add_argument("--delay", choices=["phase", "arrival"], default="arrival")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4, help="Per block.")
    parser.add_argument("--limit-s", type=float, default=60.0, help="Per block.")
    parser.add_argument("--inner-steps", type=int, default=40)
    parser.add_argument("--dir", type=Path, default=None)
    add_hidden_size(parser)
    arguments = parser.parse_args()
    end_when_told()
    payload = arguments.payload or round(FP32_BYTES * BITS[arguments.codec] / BITS["fp32"])
    limit = limit_for(arguments.ratio, arguments.phase_s, payload)
    setting = Setting(
        arguments.delay, arguments.inner_steps, limit, hidden_size=arguments.hidden_size, codec=arguments.codec
    )
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        rows = run_pair(
            Path(name), setting, lambda pair: alternate(pair, arguments.blocks, arguments.rounds, arguments.limit_s)
        )
    for row in rows:
        said = {"delay": arguments.delay, "codec": arguments.codec, "load_1min": round(os.getloadavg()[0], 1)}
        json.dump(row | said, sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
