"""Two real daemons whose trainers differ fourfold in speed, with `schedule.kind = per_site`: the slower one does fewer
inner steps per phase, and the entries say so."""

import sys
from pathlib import Path

import pytest

from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import PATIENCE_S, founder_options, log_of, site_options, write_corpus
from tests.harness.synthetic.trainer import STEP_S_VARIABLE, TOKENS_PER_STEP

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

INNER_STEPS = 20
SETTINGS = {
    "schedule.kind": "per_site",
    "schedule.inner_steps_min": "2",
    "strategy.inner_steps": str(INNER_STEPS),
    "strategy.delay": "none",
    "strategy.late_policy": "wait",
    "strategy.extend_steps_max": "0",
    "round.grace_min_s": "30.0",
    "round.grace_max_s": "60.0",
}


def start(site: SiteProcess, step_s: float) -> None:
    site.environment[STEP_S_VARIABLE] = str(step_s)
    site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])


def peer_id(site: SiteProcess) -> str:
    return str(wait_until(lambda: site.status().get("peer_id"), site.name, PATIENCE_S, site.describe))


def steps_of(row: dict[str, object]) -> dict[str, tuple[int, int]]:
    """(inner steps, tokens) by peer."""
    contributors = row["contributors"]
    assert isinstance(contributors, list)
    return {c["peer"]: (c["inner_steps"], c["tokens"]) for c in contributors}


def test_slower_site_does_fewer_steps_and_weighs_less(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    options = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    fast = found_run(tmp_path, "fast", *founder_options(tmp_path), *options)
    with sites(fast):
        start(fast, 0.05)
        fast.wait_height(1, PATIENCE_S)
        slow = join_run(tmp_path, "slow", fast, *site_options(tmp_path))
        with sites(slow):
            start(slow, 0.2)
            ids = [
                wait_until(lambda s=s: s.status().get("peer_id"), s.name, PATIENCE_S, s.describe) for s in (fast, slow)
            ]
            planned = dict(zip(ids, [(n, n * TOKENS_PER_STEP) for n in (INNER_STEPS, INNER_STEPS // 4)], strict=True))
            wait_until(
                lambda: any(steps_of(row) == planned for row in fast.rounds()),
                f"a round with {planned}",
                PATIENCE_S,
                lambda: f"{[steps_of(row) for row in fast.rounds()]}\n{slow.describe()}",
            )
            assert [slow.stop(), fast.stop()] == [0, 0]
    entries = [signed.entry for signed in log_of(fast).entries()]
    assert {entry.next_inner_steps for entry in entries} == {INNER_STEPS}, "H itself is everybody's"
