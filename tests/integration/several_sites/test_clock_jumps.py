"""A machine's clock is set by hand while rounds run: its time of day jumps, and nothing that counts goes by that."""

from pathlib import Path

import pytest

from tests.adversary.daemon import patched
from tests.adversary.patches.jump_clock import JUMP
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import join_run
from tests.harness.running.sites import sites
from tests.harness.running.strikes import events_of, now
from tests.harness.running.training import PATIENCE_S, assert_states_agree, wait_contributions_after, wait_joint_round

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
JUMPS_S = (30, -3600, 365 * 86_400)
ROUNDS = 4
"""After each jump; a site that were lost for others would be missing from one of them."""


def test_rounds_go_on_with_a_site_whose_clock_jumps(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S) as a:
        b, c = join_run(tmp_path, "b", a), join_run(tmp_path / "other", "c", a)
        with sites(b, c):
            b.start_without_model(1.0)
            patched(c, "jump_clock")
            wait_joint_round([a, b, c])
            began = now()
            for seconds in JUMPS_S:
                (c.run_dir.parent / JUMP).write_text(str(seconds))
                height = a.status()["height"]
                a.wait_height(height + ROUNDS, PATIENCE_S)
                for site in (a, b, c):
                    wait_contributions_after(site, height + ROUNDS)
            assert_states_agree(a, b, c)
            for site in (a, b, c):
                undone = events_of(site, "peer.evicted", "entry.taken_back", since=began)
                assert not undone, site.name
            assert [site.stop() for site in (c, b)] == [0, 0]
