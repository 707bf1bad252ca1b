"""What attacks cost an honest site: `python -m tests.bench.trust`. One JSON object, a row for each attack.

Row `strangers`: raw connections with garbage one after another, then keys that hold half-sent frames, against one of
two sites that commit rounds without models. Memory of its daemon (target: < 450 MB), answers of its API (50 ms), and
entries a minute before and under the attack. Loopback only; other load on the machine shows in all figures. Strangers
get the processor only when nobody else wants it, for theirs would be their own: what they cost the site is what shows.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.adversary.crowd import hold_frames, throw_garbage
from tests.adversary.judge import resident_mib
from tests.adversary.programs.asking import asked
from tests.bench import end_when_told
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites

PATIENCE_S = 120.0


def strangers(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row."""
    site = found_run(folder, "a")
    with sites(site):
        site.start_without_model(options.phase_s)
        site.wait_height(1, PATIENCE_S)
        other = join_run(folder, "b", site)
        with sites(other):
            other.start_without_model(options.phase_s)
            other.wait_height(site.status()["height"] + 1, PATIENCE_S)
            quiet = measured(site, asyncio.sleep(options.quiet_s))
            garbage = measured(site, throw_garbage(site, options.garbage))
            held = measured(site, hold_frames(folder / "keys", site, options.keys, options.frames))
            return {"quiet": quiet, "garbage": garbage, "half_sent_frames": held}


@contextlib.contextmanager
def last_in_turn() -> Iterator[None]:
    """This thread, and the processes that it starts, run when nobody else wants the processor."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def measured(site: SiteProcess, attack: Any) -> dict[str, float]:
    """Figures of one block."""

    async def run() -> float:
        working, peak = asyncio.ensure_future(attack), 0.0
        while not working.done():
            peak = max(peak, resident_mib(site))
            await asyncio.wait([working], timeout=0.1)
        await working
        return max(peak, resident_mib(site))

    height, began = site.status()["height"], time.monotonic()
    with asked(site) as answers, last_in_turn():
        peak = asyncio.run(run())
    wall_s = time.monotonic() - began
    return {
        "wall_s": round(wall_s, 1),
        "memory_peak_mib": round(peak, 1),
        "api_median_ms": round(1000 * answers.median_s, 1),
        "api_worst_ms": round(1000 * answers.worst_s, 1),
        "entries_per_minute": round(60 * (site.status()["height"] - height) / wall_s, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--garbage", type=int, default=1000, help="raw connections")
    parser.add_argument("--keys", type=int, default=16, help="strangers with a p2pd of their own")
    parser.add_argument("--frames", type=int, default=60, help="half-sent frames of each")
    parser.add_argument("--phase-s", type=float, default=1.0)
    parser.add_argument("--quiet-s", type=float, default=20.0)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"strangers": strangers(Path(folder), parser.parse_args())}))
    return 0


if __name__ == "__main__":
    end_when_told()
    sys.exit(main())
