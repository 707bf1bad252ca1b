"""One of five says that it is far ahead, and shows a branch of its own making, an entry each half second, without end:
the others look at it for so long, and go on with rounds (R22.6). Who sets no limit looks for ever."""

from pathlib import Path

import pytest

from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits
from tests.adversary.patches.donors.lie_endless import HEIGHT, SWITCH
from tests.harness.running.run_directories import OPEN, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

PATIENCE_S = 120.0
"""Against hangs alone."""
PHASE_S = 0.5
QUICK = ("--set", "round.progress_timeout_s=2")
"""A branch has 8 of them to be shown."""


def looked_at(site: SiteProcess) -> bool:
    """It has begun to look at what the liar claims."""
    return any(event["target_height"] == HEIGHT for event in events_of(site, "recovery.started"))


def goes_on(site: SiteProcess) -> bool:
    """It looked, and takes part in rounds again."""
    return looked_at(site) and site.state()["round"]["state"] != "catching_up"


def test_branch_without_end_holds_nobody_who_stands_with_most(tmp_path: Path) -> None:
    first, switch = found_run(tmp_path, "a", *OPEN, *QUICK), tmp_path / SWITCH
    switch.touch()
    with sites(first):
        first.start_without_model(PHASE_S)
        first.wait_height(1, PATIENCE_S)
        second, third, hollow, liar = (join_run(tmp_path, name, first) for name in ("b", "c", "h", "liar"))
        honest = (first, second, third)
        with sites(second, third, hollow, liar):
            for site in (second, third):
                site.start_without_model(PHASE_S)
            patched(hollow, "catching_up.hole_endless", phase_s=PHASE_S)
            patched(liar, "donors.lie_endless", phase_s=1e6)
            together = first.state()["height"] + 2
            for site in (*honest, hollow, liar):
                site.wait_height(together, PATIENCE_S)
            switch.unlink()
            for site in (*honest, hollow):
                wait_until(lambda at=site: looked_at(at), f"{site.name} to look", PATIENCE_S, site.describe)
            for site in honest:
                wait_until(lambda at=site: goes_on(at), f"{site.name} to go on", PATIENCE_S, site.describe)
            stands_at = hollow.state()["height"]
            assert_rounds_go_on(first, timeout_s=PATIENCE_S)
            assert_same_bits(*honest, timeout_s=PATIENCE_S)
            assert hollow.state()["height"] == stands_at, "without a limit it looks at the branch still"
