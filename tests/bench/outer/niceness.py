"""What `workers.outer_nice` costs exchanges and inner steps: `python -m tests.bench.outer.niceness`.

Two real sites on loopback without a limit of bandwidth, whose trainers take all cores; the outer workers of both get
each niceness in turn, until `--rounds` rounds began and ended, `--blocks` times. A JSON object for each: seconds of an
exchange and of a whole round (medians over rounds and sites), inner steps per second of both sites, and how much longer
a step takes during an exchange than beside one. As root: niceness goes down again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench import end_when_told
from tests.bench.paced import Pair, Setting, add_hidden_size, pid_of, run_pair
from tests.bench.slowdown import Block, steps_of
from tests.harness.running.sites import SiteProcess


def renice(site: SiteProcess, nice: int) -> None:
    """All threads of its outer worker."""
    for pid in pid_of(site, "outer"):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


def inner_steps(pair: Pair) -> int:
    """Of both sites, so far."""
    return sum(site.status()["totals"]["inner_steps"] for site in pair.members)


def rounds_within(pair: Pair, start: float, end: float) -> list[dict[str, Any]]:
    """Rows of both sites' rounds that began and were applied in these seconds of the epoch."""
    rows = [one for site in pair.members for one in pair.rows(site)]
    return [one for one in rows if start <= one["started_at"] and one["applied_at"] <= end]


def in_turn(pair: Pair, nices: list[int], options: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each niceness."""
    blocks: dict[int, list[Block]] = {nice: [] for nice in nices}
    steps: dict[int, int] = dict.fromkeys(nices, 0)
    for number in range(options.blocks):
        for nice in nices if number % 2 == 0 else reversed(nices):
            for site in pair.members:
                renice(site, nice)
            start, before = time.time(), inner_steps(pair)
            deadline = time.monotonic() + options.limit_s
            while len(rounds_within(pair, start, time.time())) < options.rounds and time.monotonic() < deadline:
                time.sleep(0.2)
            steps[nice] += inner_steps(pair) - before
            blocks[nice].append(Block(str(nice), start, time.time()))
    return [row(pair, nice, blocks[nice], steps[nice]) for nice in nices]


def row(pair: Pair, nice: int, blocks: list[Block], steps: int) -> dict[str, object]:
    """Figures of these stretches of the run."""
    found = [one for block in blocks for one in rounds_within(pair, block.start, block.end)]
    ratios = [steps_of(site, blocks)["ratio"] for site in pair.members]
    return {
        "outer_nice": nice,
        "rounds": len(found),
        "exchange_s": round(statistics.median(one["times"]["exchange_s"] for one in found), 3),
        "round_s": round(statistics.median(one["applied_at"] - one["started_at"] for one in found), 3),
        "steps_per_s": round(steps / sum(block.end - block.start for block in blocks), 1),
        "step_ratio": round(statistics.mean(ratio for ratio in ratios if ratio), 3) if any(ratios) else None,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.outer.niceness")
    parser.add_argument("--nices", default="0,5,10")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6, help="Per block, of both sites.")
    parser.add_argument("--limit-s", type=float, default=60.0, help="Per block.")
    parser.add_argument("--inner-steps", type=int, default=60)
    add_hidden_size(parser)
    options = parser.parse_args()
    end_when_told()
    nices = [int(word) for word in options.nices.split(",")]
    setting = Setting("arrival", options.inner_steps, hidden_size=options.hidden_size)
    with tempfile.TemporaryDirectory(prefix="dilocoxd-nice-") as name:
        for line in run_pair(Path(name), setting, lambda pair: in_turn(pair, nices, options)):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
