"""Two real sites that went on apart and meet again: one chain, and what the loser gave to its own is not lost.

Real daemons, outer workers, network and logs; only the trainers are without a model (tests/harness/synthetic_daemon).
"""

import signal
import sys
from pathlib import Path

import pytest

from dilocoxd.daemon.site.saved_feedback import read_saved
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.rundir import open_run_dir
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.twin_run_directories import make_pair
from tests.harness.synthetic.trainer import STEP_S_VARIABLE

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 240
OPTIONS = [
    "--set", "strategy.inner_steps=5", "--set", "strategy.extend_steps_max=100000", "--set", "strategy.codec=\"fp16\"",
    "--set", "data.evaluate_every_rounds=0", "--set", "model.num_layers=2", "--set", "round.final_depth=0",
]  # fmt: skip
"""Nothing becomes final: nine entries that the loser makes before a slow start of the winner is over would be (R28)."""
WINNER_AHEAD = 15
LOSER_ALONE = 2


def start(site: SiteProcess, step_s: float) -> None:
    site.environment[STEP_S_VARIABLE] = str(step_s)
    site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])


def own_phases(site: SiteProcess, peer: str) -> set[int]:
    """Phases of `peer` in the site's chain."""
    rows = wait_until(site.rounds, "the rounds of the winner", PATIENCE_S, site.describe)
    return {c["phase"] for row in rows for c in row["contributors"] if c["peer"] == peer}


def test_losers_work_goes_back_to_its_error_feedback(tmp_path: Path) -> None:
    winner, loser = make_pair(tmp_path, "tiny", OPTIONS, ["--set", "parallel.stages=1"])
    with sites(winner, loser):
        start(winner, 0.05)
        start(loser, 0.6)
        loser.wait_height(1, PATIENCE_S)
        me = loser.says("peer_id")
        loser.kill_tree()
        winner.wait_height(winner.says("height") + WINNER_AHEAD, PATIENCE_S)
        winner.kill_tree()
        start(loser, 0.6)
        height = wait_until(lambda: loser.status().get("height"), "a state", PATIENCE_S, loser.describe)
        loser.wait_height(height + LOSER_ALONE, PATIENCE_S)
        # However long the winner takes to start, its branch is the longer one.
        loser.signal_tree(signal.SIGSTOP)
        start(winner, 0.05)
        winner.says("peer_id")
        loser.signal_tree(signal.SIGCONT)
        wait_until(lambda: events_of(loser, "fork.resolved"), "the fork to be resolved", PATIENCE_S, loser.describe)
        assert loser.stop() == 0
        returned = {event["phase"] for event in events_of(loser, "contribution.returned")}
        assert len(returned) >= LOSER_ALONE
        assert not returned & own_phases(winner, me), "in the chain and in the feedback"
    # What the feedback does not have yet, it gets at the next start: its work is kept.
    run_dir = open_run_dir(loser.run_dir)
    assert returned <= KeptWorkStore(run_dir.own_work).contents().keys()
    saved = read_saved(run_dir.feedback)
    assert saved is not None
    assert not events_of(winner, "contribution.returned")
