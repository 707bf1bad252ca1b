"""What an attack did to a site: seconds of its processor, answers of its API, its rounds, its logs."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from tests.harness.running.sites import SiteProcess, wait_until

PATIENCE_S = 120.0
"""Against hangs alone."""


@dataclass
class Spent:
    """Filled in at the end of the block that measures."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


def _daemon(site: SiteProcess) -> psutil.Process:
    assert site.process is not None, f"{site.name} does not run"
    return psutil.Process(site.process.pid)


def _cpu_s(site: SiteProcess) -> float:
    times = _daemon(site).cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def spending(site: SiteProcess) -> Iterator[Spent]:
    """What the daemon alone (without p2pd and workers) spends inside the block, however busy the machine is."""
    found, cpu_s, began = Spent(), _cpu_s(site), time.monotonic()
    yield found
    found.cpu_s, found.wall_s = _cpu_s(site) - cpu_s, time.monotonic() - began


def resident_mib(site: SiteProcess) -> float:
    """Memory of the daemon's own process, in MiB."""
    return float(_daemon(site).memory_info().rss) / 2**20


def assert_rounds_go_on(site: SiteProcess, rounds: int = 2, timeout_s: float = PATIENCE_S) -> None:
    """The chain grows by so many entries from now on."""
    site.wait_height(site.state(timeout_s)["height"] + rounds, timeout_s)


def assert_same_bits(*members: SiteProcess, timeout_s: float = PATIENCE_S) -> None:
    """At some moment all stand at one height with one head and one state."""
    keys = ("height", "chain_head", "state_digest")
    seen: list[set[tuple[object, ...]]] = [set() for _ in members]

    def is_equal() -> bool:
        for member, states in zip(members, seen, strict=True):
            if status := member.status():
                states.add(tuple(status[key] for key in keys))
        return bool(set.intersection(*seen))

    wait_until(is_equal, "equal states", timeout_s, lambda: "\n".join(member.describe() for member in members))


def told(site: SiteProcess) -> bytes:
    """All that the site wrote for people: standard error and the events' file."""
    files = (site.log_path, site.run_dir / "logs" / "events.jsonl")
    return b"".join(path.read_bytes() for path in files if path.exists())
