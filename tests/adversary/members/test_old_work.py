"""A member offers old work again and again, as it was or under a new number: no entry names it twice, nor when it is
more than eight rounds old, and rounds go on (R7, TRUST C4)."""

from pathlib import Path

import pytest

from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on
from tests.adversary.patches.lie_old_work import AS_NEW
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import OPEN, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import log_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PATIENCE_S = 120.0
PHASE_S = 0.5
OLD = 9
"""Rounds: one more than a contribution may have."""


def times(site: SiteProcess, peer: str) -> int:
    """Entries of it that name this peer."""
    return sum(any(one["peer"] == peer for one in row["contributors"]) for row in site.rounds())


def test_old_work_counts_once_and_not_for_ever(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S, *OPEN, phase_s=PHASE_S) as a:
        liar, as_new = join_run(tmp_path, "liar", a), tmp_path / AS_NEW
        with sites(liar):
            patched(liar, "lie_old_work", phase_s=PHASE_S)
            name = str(wait_until(lambda: liar.status().get("peer_id"), "a peer id", PATIENCE_S, liar.describe))
            wait_until(lambda: times(a, name), "its work in an entry", PATIENCE_S, a.describe)
            a.wait_height(a.state()["height"] + OLD, PATIENCE_S)
            assert times(a, name) == 1, "the same phase counts once"
            as_new.touch()
            assert_rounds_go_on(a, 4, PATIENCE_S)
            assert times(a, name) == 1, "nor does work that is older than that count"
            assert [site.stop() for site in (liar, a)] == [0, 0]
            patched(a, "hole_old_work", phase_s=PHASE_S)
            wait_until(a.status, "an answer", PATIENCE_S, a.describe)
            patched(liar, "lie_old_work", phase_s=PHASE_S)
            wait_until(lambda: times(a, name) > 1 + OLD, "the attack works without the mend", PATIENCE_S, a.describe)
            as_new.unlink()
            before = times(a, name)
            wait_until(lambda: times(a, name) > before + 1, "and with its old number", PATIENCE_S, a.describe)
            assert [site.stop() for site in (liar, a)] == [0, 0]
    named = [c for signed in log_of(a).entries() for c in signed.entry.contributions if c.peer == name]
    assert len({c.phase for c in named}) < len(named) and len({c.base_round for c in named}) == 2
