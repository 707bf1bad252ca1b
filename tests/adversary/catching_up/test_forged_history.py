"""TRUST C2: a history that one key made alone, from genesis, heavier than that of a site at height 21, and a snapshot
that it alone certified, which skips most of it. R28."""

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on
from tests.harness.running.run_directories import OPEN, common_options, found_run, free_port
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import log_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PATIENCE_S = 240.0
HEIGHT = 21
HEAVIER_BY = 15


def dilocoxd(*arguments: str) -> None:
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, f"{done.exception}\n{done.output}"


def is_replaced(site: SiteProcess) -> bool:
    """The site has left entries of its own."""
    return any(event["is_rolled_back"] for event in events_of(site, "fork.resolved"))


def is_alarmed(site: SiteProcess) -> bool:
    return any(one["code"] == "fork_below_final" for one in site.status().get("alerts", ()))


@pytest.mark.parametrize(("quorum", "final_depth"), [("available", 64), ("majority", 64), ("majority", 0)])
def test_lone_history_from_genesis_replaces_nothing_that_is_final(
    tmp_path: Path, quorum: str, final_depth: int
) -> None:
    """Without final entries it does, whatever the quorum: the attacker is the majority of its own history, and the
    payloads of the entries that its snapshot skips are never looked at."""
    options = ["--set", f'round.quorum="{quorum}"', "--set", f"round.final_depth={final_depth}"]
    victim, port = found_run(tmp_path, "victim", *OPEN, *options), free_port()
    dilocoxd("init", str(victim.run_dir / "run.toml"), *common_options(tmp_path / "forger", port))
    forger = SiteProcess("forger", tmp_path / "forger", port)
    with sites(victim, forger):
        patched(victim, "with_snapshots", phase_s=0.8)
        patched(forger, "with_snapshots", phase_s=0.1)
        at = victim.wait_height(HEIGHT, PATIENCE_S)
        victim.signal_tree(signal.SIGSTOP)  # however slow the forger is
        forger.wait_height(at["height"] + HEAVIER_BY, PATIENCE_S)
        victim.signal_tree(signal.SIGCONT)
        dilocoxd("peers", "connect", at["join_address"], str(forger.run_dir))
        if final_depth:
            wait_until(lambda: is_alarmed(victim), "the alert", PATIENCE_S, victim.describe)
            assert_rounds_go_on(victim, 3, PATIENCE_S)
            assert not is_replaced(victim)
        else:
            wait_until(lambda: is_replaced(victim), "the forged chain", PATIENCE_S, victim.describe)
            assert victim.stop() == 0
            assert not log_of(victim).has_payload(HEIGHT - 1), "a snapshot has skipped them"
