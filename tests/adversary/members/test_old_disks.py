"""A site's disk is put back to an earlier state, as by a backup: with others there it catches up; before they are it
votes again where it has voted, and is named (R19, R27, TRUST M6)."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.adversary.daemon import patched
from tests.adversary.judge import assert_same_bits
from tests.adversary.test_double_votes import alert
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import OPEN, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import log_of
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PATIENCE_S = 120.0
PHASE_S, SLOW_S, NEVER_S = 0.5, 2.5, 1e6
"""Slow where nobody can be reached: few entries, and soon over. That longer branches give it away too is shown in
tests/unit/daemon/recovery/test_driver.py."""
LOST, AHEAD = 2, 1
"""Entries that the disk does not have any more, and so many more than these that it makes alone."""


def start(site: SiteProcess, phase_s: float = PHASE_S) -> None:
    patched(site, "other_work", phase_s=phase_s)


def watch(watcher: SiteProcess, site: SiteProcess) -> None:
    """It offers nothing, so each entry has the vote of the other one, and it has all entries."""
    wait_until(watcher.status, "an answer", PATIENCE_S, watcher.describe)
    invoke("pause", str(watcher.run_dir))
    watcher.wait_height(site.state()["height"], PATIENCE_S)


def go_on_alone(site: SiteProcess, watcher: SiteProcess, height: int) -> None:
    """Start it while nobody can be reached, so that each entry takes one attempt; the watcher takes them then, up to
    this height."""
    watcher.signal_tree(signal.SIGSTOP)
    start(site, SLOW_S)
    site.wait_height(height, PATIENCE_S)
    watcher.signal_tree(signal.SIGCONT)
    watcher.wait_height(height, PATIENCE_S)


def lose(site: SiteProcess, watcher: SiteProcess, backup: Path) -> None:
    """Copy its disk while it is stopped, let it make entries that the watcher has, and put the copy back. What is lost
    counts from the copy's end: the watcher may be behind when the site stops."""
    assert site.stop() == 0
    shutil.copytree(site.run_dir, backup)
    go_on_alone(site, watcher, log_of(site).height + LOST)
    site.kill_tree()
    shutil.rmtree(site.run_dir)
    backup.rename(site.run_dir)


def fork(site: SiteProcess, watcher: SiteProcess, backup: Path) -> None:
    """Its disk is put back while nobody can be reached, and it has the better branch when the watcher can."""
    lose(site, watcher, backup)
    go_on_alone(site, watcher, watcher.state()["height"] + AHEAD)
    assert_same_bits(site, watcher, timeout_s=PATIENCE_S)
    assert events_of(watcher, "fork.resolved"), "it has left what was lost"


def test_site_whose_disk_was_put_back_is_named_if_it_votes_again(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S, *OPEN, phase_s=PHASE_S) as a:
        watcher = join_run(tmp_path, "w", a)
        with sites(watcher):
            patched(watcher, "hole_evidence", phase_s=NEVER_S)
            watch(watcher, a)
            fork(a, watcher, tmp_path / "first")
            assert not alert(watcher), "the attack works without the mend"
            assert watcher.stop() == 0
            watcher.start_without_model(NEVER_S)
            watch(watcher, a)
            lose(a, watcher, tmp_path / "second")
            start(a)
            a.wait_height(watcher.state()["height"] + 2, PATIENCE_S)
            assert_same_bits(a, watcher, timeout_s=PATIENCE_S)
            assert not alert(watcher), "it catches up before it votes"
            fork(a, watcher, tmp_path / "third")
            wait_until(lambda: "voted for two entries" in alert(watcher), "the alert", PATIENCE_S, watcher.describe)
