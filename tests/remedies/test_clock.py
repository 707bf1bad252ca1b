"""The remedy for a clock that is off: both doctors see it, and see that it was set, whatever was counted before."""

from pathlib import Path

import pytest

from tests.adversary.daemon import patched
from tests.adversary.patches.jump_clock import JUMP
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import join_run
from tests.harness.running.sites import sites, wait_until
from tests.remedies.test_findings import of_site, require_words

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PATIENCE_S = 120
AHEAD_S = 120


@pytest.mark.remedy("finding:clock")
def test_a_clock_that_is_two_minutes_fast_is_told_on_both_machines_until_it_is_set(tmp_path: Path) -> None:
    require_words("clock", "Start a time service where the clock is off")
    with founder(tmp_path, PATIENCE_S) as a:
        b = join_run(tmp_path, "b", a)
        with sites(b):
            (b.run_dir.parent / JUMP).write_text(str(AHEAD_S))
            patched(b, "jump_clock")
            wait_until(lambda: b.status().get("peers", {}).get("live"), "the founder", PATIENCE_S, b.describe)

            def says(text: str) -> bool:
                found = of_site(a.run_dir)["clock"]
                return found.level == "error" and text in found.text and bool(found.remedy)

            wait_until(lambda: says("more than a minute ahead of ours"), "the error", PATIENCE_S, a.describe)

            def sees_it() -> bool:
                found = of_site(b.run_dir)["clock"]
                return found.level == "error" and "is -1" in found.text

            wait_until(sees_it, "the error on the other machine", PATIENCE_S, b.describe)
            # Stands for chrony, which would set the clock of the machine that runs the tests.
            (b.run_dir.parent / JUMP).unlink()
            wait_until(
                lambda: a.status().get("peers", {}).get("live"), "the other site to be heard", PATIENCE_S, a.describe
            )
            assert "clock_skew" in str(a.status()["bad_input"])
            for site in (a, b):
                wait_until(lambda at=site: of_site(at.run_dir)["clock"].level == "ok", "ok", PATIENCE_S, site.describe)
