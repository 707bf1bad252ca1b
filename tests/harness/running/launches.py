"""Launches of fresh sites by `dilocoxd join ADDR`, one after the other, and the time of each stage of joining."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.running.run_directories import common_options, free_port, link_of
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import Event, events_of, now, wait_event

REAL = (sys.executable, "-m", "dilocoxd")
SYNTHETIC = (sys.executable, "-m", "tests.harness.synthetic.join")
STAGES = ("manifest", "daemon", "p2pd", "seen live", "outer worker", "met others", "training", "in an entry")


@dataclass(frozen=True)
class Launch:
    """One site from nothing."""

    name: str
    times: dict[str, float]
    """Stage -> seconds after the command was given."""


def launch(founder: SiteProcess, folder: Path, number: int, command: Sequence[str], *options: str) -> Launch:
    """Join, take part in a round, leave. AssertionError if any stage is not reached in time."""
    site = SiteProcess(f"joiner-{number}", folder / f"joiner-{number}", free_port(), dict(founder.environment))
    link = link_of(founder.run_dir, founder.status()["join_address"])
    with sites(site):
        at = now()
        site.start_command([*command, "join", link, *common_options(site.run_dir, site.port), *options])
        times = _watch(founder, site, at)
        assert site.stop() == 0, site.describe()
    wait_event(founder, "peer.left", at, 60, peer=events_of(site, "daemon.started")[0]["peer_id"])
    return Launch(site.name, times)


def _watch(founder: SiteProcess, site: SiteProcess, at: float, patience_s: float = 150.0) -> dict[str, float]:
    def alive() -> bool:
        assert site.process is not None and site.process.poll() is None, f"{site.name} ended\n{site.describe()}"
        return True

    def seen(observer: SiteProcess, event: str, **fields: object) -> Event:
        wait_until(
            lambda: alive() and [e for e in events_of(observer, event, since=at) if fields.items() <= e.items()],
            f"{event} {fields} of {observer.name}", patience_s, site.describe,
        )  # fmt: skip
        return wait_event(observer, event, at, patience_s, **fields)

    me = seen(site, "daemon.started")["peer_id"]

    def entry() -> Event | None:
        alive()
        rounds = events_of(founder, "round.committed", since=at)
        return next((e for e in rounds if me in e["contributors"]), None)

    found = {
        "manifest": (site.run_dir / "run.toml").stat().st_mtime,
        "daemon": seen(site, "daemon.started")["time"],
        "p2pd": seen(site, "worker.started", worker="p2pd")["time"],
        "seen live": seen(founder, "peer.found", peer=me)["time"],
        "outer worker": seen(site, "worker.started", worker="outer")["time"],
        "met others": seen(site, "swarm.joined")["time"],
        "training": seen(site, "phase.started")["time"],
        "in an entry": wait_until(entry, f"an entry with {site.name}", patience_s, site.describe)["time"],
    }
    return {stage: found[stage] - at for stage in STAGES}


def table(launches: Sequence[Launch]) -> str:
    """Markdown: seconds after the command until each stage."""
    lines = ["| stage reached | median s | fastest s | slowest s |", "|---|---|---|---|"]
    for stage in STAGES:
        values = [item.times[stage] for item in launches]
        lines.append(f"| {stage} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")
    return "\n".join(lines)
