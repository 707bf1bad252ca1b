"""Two real sites apart for longer than entries stay open: each stays on its branch, and an operator decides.

Real daemons, network, logs and command line; only the trainers are without a model.
"""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import assert_states_agree, log_of
from tests.harness.running.twin_run_directories import make_pair

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 240
PHASE_S = 0.5
OPTIONS = ["--set", "round.final_depth=3"]
APART = 6
"""Entries of the lighter side alone: more than make the first of them final."""
ALERT = "fork_below_final"


def alert_of(site: SiteProcess) -> str:
    return next((str(one["text"]) for one in site.status().get("alerts", ()) if one["code"] == ALERT), "")


def head_of(site: SiteProcess) -> str:
    return str(site.status().get("chain_head", ""))


def left(site: SiteProcess) -> list[dict[str, Any]]:
    """Forks in which the site left entries of its own."""
    return [row for row in events_of(site, "fork.resolved") if row["is_rolled_back"]]


@pytest.mark.remedy("alert:fork_below_final")
def test_sites_beyond_final_entries_stay_apart_until_one_is_told(tmp_path: Path) -> None:
    heavy, light = make_pair(tmp_path, "tiny", OPTIONS, ["--set", "parallel.stages=1"])
    with sites(heavy, light):
        for site in (heavy, light):
            site.start_without_model(PHASE_S)
        for site in (heavy, light):
            site.wait_height(2, PATIENCE_S)
        light.kill_tree()
        heavy.wait_height(heavy.status()["height"] + 3 * APART, PATIENCE_S)
        heavy.kill_tree()
        light.start_without_model(PHASE_S)
        height = wait_until(lambda: light.status().get("height"), "a state", PATIENCE_S, light.describe)
        light.wait_height(height + APART, PATIENCE_S)
        light.kill_tree()  # else it goes on while the other one starts, and may become the heavier of the two
        heavy.start_without_model(PHASE_S)
        wait_until(lambda: heavy.status().get("state") == "training", "its branch", PATIENCE_S, heavy.describe)
        # However late the other one was killed, this is the heavier branch.
        heavy.wait_height(log_of(light).height + APART, PATIENCE_S)
        light.start_without_model(PHASE_S)

        text = wait_until(lambda: alert_of(light), "the alert", PATIENCE_S, light.describe)
        assert "ours is " in text and "the other is " in text and not alert_of(heavy)
        heights = [site.status()["height"] for site in (heavy, light)]
        for site, before in zip((heavy, light), heights, strict=True):
            site.wait_height(before + 2, PATIENCE_S)  # nobody stops for it
        assert not left(light) and not left(heavy)

        unknown = CliRunner().invoke(cli, ["adopt", "f" * 64, str(light.run_dir)], standalone_mode=False)
        assert "no known chain head begins with" in str(unknown.exception)
        head = head_of(heavy)
        done = CliRunner().invoke(cli, ["adopt", head[:16], str(light.run_dir)], standalone_mode=False)
        assert f"the branch with head {head[:16]}" in done.output, done.exception
        light.kill_tree()  # what was said is kept
        light.start_without_model(PHASE_S)

        wait_until(lambda: left(light), "the end of its branch", PATIENCE_S, light.describe)
        assert_states_agree(heavy, light)
        wait_until(lambda: not alert_of(light), "the end of the alert", PATIENCE_S, light.describe)
        assert not left(heavy)
        assert [site.stop(40) for site in (heavy, light)] == [0, 0]
