"""From SIGKILL of a site's trainer to its next inner step, with everything real: wall time, and CPU of the whole site.

`python -m tests.bench.restarts.again [KILLS]`: one site of preset tiny, killed again and again; what a kill costs is
the restart's pause, a fork, the anchor that is copied from the daemon's buffers, and an inner step.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import founder_options

KILLS = 5
PATIENCE_S = 60.0
POLL_S = 0.01
SETTLED_S = 0.1
"""Shorter than a restart's pause: what the daemon was told by then comes from the trainer that died."""
APART_S = 4.0
WINDOW = ("--set", "workers.restart_window_s=3")
"""Each kill is the first one for long: the pause of a restart doubles with each other one inside the window."""


def trainer_of(site: SiteProcess) -> psutil.Process:
    """The one rank of the site's trainer. StopIteration while there is none."""
    return next(one for one in site.tree() if "trainer" in " ".join(one.cmdline()))


def step_of(site: SiteProcess) -> int:
    """Inner steps that the site has done, as far as its status knows."""
    return int((site.status().get("phase") or {}).get("global_step", 0))


def cpu_of(site: SiteProcess) -> float:
    """CPU seconds of the processes that live now."""
    return sum(sum(one.cpu_times()[:2]) for one in site.tree())


def kill(site: SiteProcess) -> tuple[float, float]:
    """(seconds until the next inner step, CPU seconds of the site meanwhile)."""
    trainer = trainer_of(site)
    cpu = cpu_of(site) - sum(trainer.cpu_times()[:2])
    at = time.monotonic()
    trainer.kill()
    time.sleep(SETTLED_S)
    before = step_of(site)
    wait_until(lambda: step_of(site) != before, "an inner step", PATIENCE_S, site.describe, poll_s=POLL_S)
    return time.monotonic() - at, cpu_of(site) - cpu


def main(kills: int) -> None:
    """Run and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="again-") as name:
        site = found_run(Path(name), "a", *founder_options(Path(name), inner_steps=50), *WINDOW)
        site.cold = True
        with sites(site):
            site.start()
            wait_until(lambda: step_of(site) > 0, "an inner step", PATIENCE_S, site.describe)
            print("| inner step again after, s | CPU s of the site |\n|---|---|")
            for _ in range(kills):
                time.sleep(APART_S)
                again_s, cpu_s = kill(site)
                print(f"| {again_s:.2f} | {cpu_s:.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS)
