"""From SIGKILL of a site's trainer to its next inner step, with everything real: wall time, and CPU of the whole site.

`python -m tests.bench.restarts.again [KILLS]`: one site of preset tiny, killed again and again; what a kill costs is
the restart's pause, a fork, the anchor that is copied from the daemon's buffers, and an inner step; and up to the 0.2 s
after which the status is made anew.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.bench import end_when_told
from tests.bench.paced import pid_of
from tests.bench.restarts.startup import cpu_of, step_of
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import founder_options

KILLS = 5
PATIENCE_S = 60.0
POLL_S = 0.01
APART_S = 4.0
WINDOW = ("--set", "workers.restart_window_s=3")
"""Each kill is the first one for long: the pause of a restart doubles with each other one inside the window."""


def is_back(site: SiteProcess, restarts: int) -> bool:
    """Whether a trainer of a later life runs: only then what the status counts are its steps."""
    trainer = site.status()["workers"]["trainer"]
    return trainer["restarts"] > restarts and bool(trainer["pids"])


def kill(site: SiteProcess) -> tuple[float, float]:
    """(seconds until the next inner step, CPU seconds of the site meanwhile)."""
    (trainer,) = map(psutil.Process, pid_of(site, "trainer"))
    cpu = cpu_of(site) - sum(trainer.cpu_times()[:2])
    restarts, at = site.status()["workers"]["trainer"]["restarts"], time.monotonic()
    trainer.kill()
    wait_until(lambda: is_back(site, restarts), "a trainer", PATIENCE_S, site.describe, poll_s=POLL_S)
    before = step_of(site)  # of the phase's beginning: what the dead one did of it is done again
    wait_until(lambda: step_of(site) > before, "an inner step", PATIENCE_S, site.describe, poll_s=POLL_S)
    return time.monotonic() - at, cpu_of(site) - cpu


def main(kills: int) -> None:
    """Run and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="again-") as name:
        site = found_run(Path(name), "a", *founder_options(Path(name), inner_steps=50), *WINDOW)
        with sites(site):
            site.start()
            wait_until(lambda: step_of(site) > 0, "an inner step", PATIENCE_S, site.describe)
            print("| inner step again after, s | CPU s of the site |\n|---|---|")
            for _ in range(kills):
                time.sleep(APART_S)
                again_s, cpu_s = kill(site)
                print(f"| {again_s:.2f} | {cpu_s:.2f} |", flush=True)


if __name__ == "__main__":
    end_when_told()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS)
