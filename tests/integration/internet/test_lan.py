"""Two machines on one network, in namespaces: a daemon tells of its run, `dilocoxd join` without a link hears it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.store.rundir import RunDir
from tests.harness.running.network_namespaces import NamespacedSite, namespaced
from tests.harness.running.sites import sites, wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 90.0


def joined(site: NamespacedSite, folder: Path) -> subprocess.CompletedProcess[str]:
    """`dilocoxd join` without a link, typed at the machine of a site."""
    command = ["ip", "netns", "exec", site.namespace, sys.executable, "-m", "dilocoxd", "join"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_join_without_a_link_lists_the_runs_of_the_network_and_no_invite(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with namespaced(f"ln{os.getpid() % 10000}", tmp_path, "ab") as (network, (teller, newcomer)):
        silent = joined(newcomer, empty)
        assert silent.returncode == 78
        assert "no site on this network tells of a run; give `dilocoxd join` the link" in silent.stderr

        told = ["--set", "network.lan_announce=always", "--name", "attic"]
        made = CliRunner().invoke(cli, ["init", "tiny", *teller.options(), *told], standalone_mode=False)
        assert made.exception is None, made.output
        with sites(teller):
            teller.start_without_model(1.0)

            def heard() -> str:
                done = joined(newcomer, empty)
                return done.stdout if done.returncode == 0 else ""

            text = wait_until(heard, "an answer", PATIENCE_S, teller.describe)
            status = teller.status()
        assert f"/ip4/{network.address('a')}/tcp/31337/p2p/{status['peer_id']}" in text and "attic" in text
        assert f"to join {status['run_id']}, ask its operator for a link: dilocoxd invite RUN_DIR" in text
        invite = RunDir(teller.run_dir).invite.read_text().strip()
        assert invite and invite not in text
        assert list(empty.iterdir()) == []
