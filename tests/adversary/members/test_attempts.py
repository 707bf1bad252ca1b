"""The only other member says that it is in the last attempt that a message can name: nobody goes there (R5.6).

Who did could go to no later one, neither then nor after a restart, for its promise of that attempt was on disk.
"""

from pathlib import Path

import pytest

from tests.adversary.daemon import patched
from tests.adversary.judge import PATIENCE_S, assert_rounds_go_on, told
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PHASE_S = 0.5


def meet_liar(folder: Path, site: SiteProcess) -> SiteProcess:
    """Of the same run, just started."""
    liar = join_run(folder, "liar", site)
    patched(liar, "members.lie_attempts", phase_s=PHASE_S)
    return liar


def refused(site: SiteProcess) -> bool:
    """Whether it took an attempt for too far."""
    return any(event["code"] == "attempt_jump" for event in events_of(site, "input.rejected"))


def test_last_of_all_attempts_is_believed_of_nobody_and_ends_no_site(tmp_path: Path) -> None:
    for folder in ("a", "h"):
        (tmp_path / folder).mkdir()
    with founder(tmp_path / "a", PATIENCE_S, phase_s=PHASE_S) as site:
        liar = meet_liar(tmp_path / "a", site)
        with sites(liar):
            wait_until(lambda: refused(site), "its attempt to be refused", PATIENCE_S, site.describe)
            liar.kill_tree()
            assert_rounds_go_on(site, 2, PATIENCE_S)
    hollow = found_run(tmp_path / "h", "a")
    with sites(hollow):
        patched(hollow, "hole_attempts", phase_s=PHASE_S)
        hollow.wait_height(1, PATIENCE_S)
        liar = meet_liar(tmp_path / "h", hollow)
        with sites(liar):
            process = hollow.process
            assert process is not None
            wait_until(lambda: process.poll() is not None, "the attack to work", PATIENCE_S, hollow.describe)
        for _ in range(2):  # what it promised is on disk
            assert process.returncode != 0 and b"attempt" in told(hollow)
            patched(hollow, "hole_attempts", phase_s=PHASE_S)
            process = hollow.process
            assert process is not None
            wait_until(lambda at=process: at.poll() is not None, "its end", PATIENCE_S, hollow.describe)
