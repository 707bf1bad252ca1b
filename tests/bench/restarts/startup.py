"""From a command to its first answer, and to the first inner step: wall and CPU time, medians, beside `import torch`.

`python -m tests.bench.restarts.startup [REPETITIONS]`. The last rows are one whole site of preset tiny, from
`dilocoxd run` on a tokenised corpus: all its processes together, and when each stage was reached.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.bench import end_when_told
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of, now
from tests.harness.running.training import founder_options

REPETITIONS = 5
PATIENCE_S = 150.0
REFERENCE = "import torch"
COMMANDS = {
    "python, nothing": ["-c", "pass"],
    REFERENCE: ["-c", REFERENCE],
    "dilocoxd --help": ["-m", "dilocoxd", "--help"],
    "dilocoxd init --help": ["-m", "dilocoxd", "init", "--help"],
    "imports of the daemon": ["-c", "import dilocoxd.cli.commands, dilocoxd.daemon.app, dilocoxd.api.server"],
    "imports of the fork server": ["-c", "import dilocoxd.outerworker.main, dilocoxd.trainer.main"],
    "the same, two stages": [
        "-c",
        "import dilocoxd.outerworker.main, dilocoxd.trainer.main, torch.distributed.pipelining",
    ],
}
STAGES = ("daemon.started", "worker.started", "phase.started")


def cpu_of_children() -> float:
    """CPU seconds of all ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(arguments: list[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of one Python process."""
    cpu, began = cpu_of_children(), time.monotonic()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, cpu_of_children() - cpu


def commands(repetitions: int) -> None:
    """Print a row for each command; they take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(repetitions):
        for name, arguments in COMMANDS.items():
            times[name].append(timed(arguments))
    reference = statistics.median(cpu for _, cpu in times[REFERENCE])
    print("| command | wall s | CPU s | CPU / import torch |\n|---|---|---|---|")
    for name, found in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {cpu / reference:.2f} |", flush=True)


def step_of(site: SiteProcess) -> int:
    """Inner steps that the site has done, as far as its status knows."""
    return int((site.status().get("phase") or {}).get("global_step", 0))


def cpu_of(site: SiteProcess) -> float:
    """CPU seconds of the site's processes that live now."""
    return sum(sum(process.cpu_times()[:2]) for process in site.tree() if psutil.pid_exists(process.pid))


def first_step(site: SiteProcess) -> str:
    """A row of the second table: one start, until an inner step is done."""
    at, began = now(), time.monotonic()
    with sites(site):
        site.start()
        wait_until(lambda: step_of(site) > 0, "an inner step", PATIENCE_S, site.describe, poll_s=0.02)
        wall = time.monotonic() - began
        cpu = cpu_of(site)
    reached = {e.get("worker", e["event"]): e["time"] - at for name in STAGES for e in events_of(site, name, since=at)}
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in reached.items())
    return f"| {wall:.2f} | {cpu:.2f} | {stages} |"


def main(repetitions: int) -> None:
    """Run and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    commands(repetitions)
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        site = found_run(Path(name), "a", *founder_options(Path(name), inner_steps=50))
        first_step(site)  # this one tokenises
        print("\n| first inner step after, s | CPU s, all processes | reached after, s |\n|---|---|---|")
        for _ in range(repetitions):
            print(first_step(site), flush=True)


if __name__ == "__main__":
    end_when_told()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS)
