"""Resident memory of two whole sites over many rounds of a large synthetic state: `python -m tests.bench.memory`.

Real daemons, p2pd, outer workers, network and log; only the trainers are replaced (tests/harness/synthetic/trainer.py).
Prints one JSON object per site: daemon, p2pd, outer worker (private; shared buffers as multiples of the fp32
parameters; fixed baseline = what the fork server it was forked from has of its own: a fork counts those pages too) and
growth from the second third of the rounds to the last.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import end_when_told
from tests.bench.outer_memory import MIB, MODELS, resident
from tests.harness.running.sites import SiteProcess, sites
from tests.harness.running.twin_run_directories import make_pair
from tests.harness.synthetic.trainer import STEP_S_VARIABLE

SAMPLE_S = 0.5


def parent_of(pid: int) -> int:
    """Pid of the process that forked this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def shared_bytes(daemon_pid: int) -> dict[str, int]:
    """Memory that each shared buffer of this daemon really takes."""
    found = {}
    for link in Path(f"/proc/{daemon_pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith("/memfd:"):
                found[target.removeprefix("/memfd:").removesuffix(" (deleted)")] = link.stat().st_blocks * 512
    return found


@dataclass
class Watch:
    """What was seen of one site."""

    site: SiteProcess
    by_round: dict[str, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    peaks: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    shared_parts: dict[str, int] = field(default_factory=dict)
    baseline: int = 0
    height: int = 0

    def look(self) -> None:
        """One sample of every process."""
        assert self.site.process is not None
        assert self.site.process.poll() is None, self.site.describe()
        status = self.site.status()
        if not status:
            return
        self.height = max(self.height, status["height"])
        daemon = self.site.process.pid
        with contextlib.suppress(OSError):  # a process that is just being restarted
            self._note("daemon", sum(resident(daemon).values()))
            self._note("p2pd", sum(resident(status["workers"]["p2pd"]["pid"]).values()))
            self._look_at_outer(status["workers"]["outer"]["pid"], shared_bytes(daemon))

    def _look_at_outer(self, pid: int, parts: dict[str, int]) -> None:
        now, shared = resident(pid), sum(parts.values())
        self.baseline = max(self.baseline, resident(parent_of(pid))["RssAnon"])
        if shared > self.peaks["shared"]:
            self.shared_parts = parts
        self._note("shared", shared)
        self._note("outer_private", now["RssAnon"])
        self._note("outer_files", now["RssFile"])
        self._note("outer_total", now["RssAnon"] + shared)

    def _note(self, name: str, value: int) -> None:
        self.peaks[name] = max(self.peaks[name], value)
        self.by_round[name][self.height].append(value)

    def growth(self, name: str) -> float:
        """Median of each round's largest value: last third less second third, MiB."""
        rows = [max(values) for _, values in sorted(self.by_round[name].items())]
        third = len(rows) // 3
        if not third:
            return 0.0
        return (statistics.median(rows[-third:]) - statistics.median(rows[third : 2 * third])) / MIB

    def report(self, parameter_bytes: int) -> dict[str, Any]:
        """Figures for people and for the test."""
        peaks = self.peaks
        rows = self.site.rounds()
        times = [row["applied_at"] - row["started_at"] for row in rows if row["applied_at"] and row["started_at"]]
        return {
            "site": self.site.name,
            "rounds": self.height,
            "joint_rounds": sum(len(row["contributors"]) == 2 for row in rows),
            "attempts_failed": sum(max(0, (row["attempts"] or 1) - 1) for row in rows),
            "round_s": round(statistics.median(times), 2) if times else None,
            "parameter_mib": round(parameter_bytes / MIB, 1),
            "daemon_mib": round(peaks["daemon"] / MIB, 1),
            "p2pd_mib": round(peaks["p2pd"] / MIB, 1),
            "daemon_and_p2pd_mib": round((peaks["daemon"] + peaks["p2pd"]) / MIB, 1),
            "outer_baseline_mib": round(self.baseline / MIB, 1),
            "outer_private_mib": round(peaks["outer_private"] / MIB, 1),
            "outer_files_mib": round(peaks["outer_files"] / MIB, 1),
            "shared_x": round(peaks["shared"] / parameter_bytes, 3),
            "outer_less_baseline_x": round((peaks["outer_total"] - self.baseline) / parameter_bytes, 3),
            "shared_mib": {name: round(size / MIB, 1) for name, size in sorted(self.shared_parts.items()) if size},
            "growth_mib": {name: round(self.growth(name), 2) for name in ("daemon", "p2pd", "outer_private", "shared")},
        }


def parameter_bytes_of(site: SiteProcess) -> int:
    """fp32 size of the state: the size (not the use) of its ANCHOR buffer."""
    assert site.process is not None
    for link in Path(f"/proc/{site.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:") and "anchor" in str(link.readlink()):
                return link.stat().st_size
    raise AssertionError("the daemon has no buffer for the anchor")


def manifest_options(model: str, *, snapshot_every: int, delay: str, segment_elements_max: int) -> list[str]:
    """Options of `init tiny`: this model, phases of a second that are extended until the round is over."""
    settings: dict[str, object] = {
        "strategy.inner_steps": 10,
        "strategy.extend_steps_max": 100_000,
        "strategy.delay": delay,
        "strategy.codec": "int4",
        "strategy.segment_elements_max": segment_elements_max,
        "data.evaluate_every_rounds": 0,
        "round.grace_min_s": 60.0,
        "round.grace_max_s": 120.0,
        "round.progress_timeout_s": 60.0,
        "snapshot.every_rounds": snapshot_every,
        "snapshot.keep": 1,
    }
    settings |= {f"model.{name}": value for name, value in MODELS[model].items()}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def measure(
    folder: Path, options: list[str], *, rounds: int, limit_s: float, step_s: float = 0.1
) -> list[dict[str, Any]]:
    """Run both sites to `rounds` (or for `limit_s`); one report per site."""
    pair = make_pair(folder, "tiny", options, ["--cache", str(folder / "cache")])
    watches = [Watch(site) for site in pair]
    with sites(*pair):
        for site in pair:
            site.environment[STEP_S_VARIABLE] = str(step_s)
            site.cold = True
            site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and min(watch.height for watch in watches) < rounds:
            for watch in watches:
                watch.look()
            time.sleep(SAMPLE_S)
        return [watch.report(parameter_bytes_of(watch.site)) for watch in watches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="100m")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--limit-s", type=float, default=7200.0)
    parser.add_argument("--delay", choices=["none", "phase", "arrival"], default="arrival")
    parser.add_argument("--snapshot-every", type=int, default=10)
    parser.add_argument("--segment-elements-max", type=int, default=1 << 20)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--dir", type=Path, default=None, help="Where the run directories go.")
    arguments = parser.parse_args()
    end_when_told()
    options = manifest_options(
        arguments.model,
        snapshot_every=arguments.snapshot_every,
        delay=arguments.delay,
        segment_elements_max=arguments.segment_elements_max,
    )
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        reports = measure(
            Path(folder), options, rounds=arguments.rounds, limit_s=arguments.limit_s, step_s=arguments.step_s
        )
    load = os.getloadavg()[1]
    for row in reports:
        json.dump(row | {"delay": arguments.delay, "load_5min": round(load, 1)}, sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
