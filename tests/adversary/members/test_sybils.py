"""As many fresh ids of one attacker as members take part and die: a run that wants a majority goes on without them, for
they counted in none; one without probation stands still for ever (M11, R14, TRUST H3)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversary.judge import assert_rounds_go_on
from tests.harness.running.openings import founder, joiner
from tests.harness.running.run_directories import OPEN
from tests.harness.running.sites import SiteProcess, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PATIENCE_S = 120.0
PHASE_S = 0.5
MAJORITY = ("--set", "round.quorum=majority")
ON_PROBATION = ("--set", "admission.mode=open", "--set", "admission.probation_rounds=1000")
"""Longer than the test."""
RECENT = 8
"""Entries whose contributors a majority is counted of."""


def recent(site: SiteProcess) -> set[str]:
    """Who is in its newest entries."""
    return {one["peer"] for row in site.rounds()[-RECENT:] for one in row["contributors"]}


@contextlib.contextmanager
def left_by_a_sybil(folder: Path, *options: str) -> Iterator[SiteProcess]:
    """A member alone, soon after a fresh id has contributed, and died at once."""
    folder.mkdir()
    with founder(folder, PATIENCE_S, *MAJORITY, *options, phase_s=PHASE_S) as site, joiner(folder, "z", site) as fresh:
        me = str(fresh.state()["peer_id"])
        wait_until(lambda: me in recent(site), "it in an entry", PATIENCE_S, site.describe)
        fresh.kill_tree()
        yield site


def is_dead(site: SiteProcess) -> bool:
    """It waits for more than itself, and nobody else is there."""
    return "1 of 2 recent contributors take part" in site.state()["waiting_for"]


def test_fresh_ids_that_die_stop_no_run_that_wants_a_majority(tmp_path: Path) -> None:
    with left_by_a_sybil(tmp_path / "h", *OPEN) as hollow:
        wait_until(lambda: is_dead(hollow), "the attack works without probation", PATIENCE_S, hollow.describe)
        height = hollow.state()["height"]
        with left_by_a_sybil(tmp_path / "a", *ON_PROBATION) as site:
            assert_rounds_go_on(site, RECENT + 1, PATIENCE_S)
        assert hollow.state()["height"] == height and is_dead(hollow)
