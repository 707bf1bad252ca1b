"""Strikes at named points of a running site (dilocoxd/ipc/fault.py), and its events, read while it runs."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dilocoxd.ipc.fault import FAULT_VARIABLE, POINTS
from tests.harness.running.sites import SiteProcess, wait_until
from tests.harness.synthetic.fake_site import STOOD_STILL

Event = dict[str, Any]


@dataclass
class Fault:
    """Arms and releases points of one site; make it before the site starts."""

    site: SiteProcess
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.site.run_dir.parent / f"{self.site.name}-fault"
        self.folder.mkdir()
        self.site.environment[FAULT_VARIABLE] = str(self.folder)

    def arm(self, point: str) -> None:
        """The next process of the site that comes to `point` waits there."""
        assert point in POINTS
        (self.folder / point).touch()

    def wait_held(self, point: str, timeout_s: float) -> None:
        """Until a process waits at `point`."""
        held = self.folder / f"{point}.held"
        wait_until(held.exists, f"{self.site.name} at {point}", timeout_s, self.site.describe)

    def release(self) -> None:
        """Whoever waits goes on."""
        for point in POINTS:
            (self.folder / point).unlink(missing_ok=True)
            (self.folder / f"{point}.held").unlink(missing_ok=True)


def events_of(site: SiteProcess, *names: str, since: float = 0.0) -> list[Event]:
    """The site's events of these names since a unix time, oldest first, over all its lives."""
    found: list[Event] = []
    logs = site.run_dir / "logs"
    for path in (logs / "events.jsonl.1", logs / "events.jsonl"):
        if path.exists():
            lines = path.read_text("utf-8").splitlines(keepends=True)
            told = [line for line in lines if line.endswith("\n")]  # the last may be half written
            # Waits read thousands of events five times a second: only what may be meant is parsed.
            found += [json.loads(line) for line in told if not names or any(name in line for name in names)]
    return [event for event in found if event["time"] >= since and (not names or event["event"] in names)]


def wait_event(site: SiteProcess, name: str, since: float, timeout_s: float, **fields: object) -> Event:
    """The first event of this name since a unix time whose fields have these values."""

    def first() -> Event | None:
        found = events_of(site, name, since=since)
        return next((event for event in found if fields.items() <= event.items()), None)

    found: Event = wait_until(first, f"{name} {fields} of {site.name}", timeout_s, site.describe)
    return found


def standstills(site: SiteProcess) -> list[tuple[float, float]]:
    """Stretches of unix time in which the daemon's loop did not run, by its own word: it had no CPU."""
    found = [(event["time"], event["lag_s"]) for event in events_of(site, "loop.blocked")]
    fake = site.run_dir / STOOD_STILL
    if fake.exists():
        found += [(float(at), float(lag_s)) for at, lag_s in map(str.split, fake.read_text().splitlines())]
    return [(at - lag_s, at) for at, lag_s in found]


def stood_still_s(site: SiteProcess, begin: float, end: float) -> float:
    """How much of a stretch of unix time that was."""
    return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in standstills(site))


def now() -> float:
    """Unix time as events carry it: rounded down, so that nothing that follows seems to come before."""
    return int(time.time() * 1000) / 1000
