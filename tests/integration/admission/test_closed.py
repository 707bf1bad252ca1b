"""A closed run with real daemons: who is not listed is told by which id to be, and trains along once it is."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dilocoxd.store.rundir import open_run_dir
from tests.harness.running.run_directories import common_options, found_run, free_port, link_of
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = pytest.mark.processes
PATIENCE_S = 90


def joined(target: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dilocoxd", "join", target, "--no-run", "--timeout", "60", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def says(words: str, done: subprocess.CompletedProcess[str]) -> str:
    """What it said, if it was refused in these words."""
    assert done.returncode == 78 and words in done.stderr, shlex.join(done.args) + done.stderr
    return done.stderr


def contributors(site: SiteProcess) -> set[str]:
    return {c["peer"] for row in site.rounds() if row["committed_at"] for c in row["contributors"]}


def test_site_that_is_not_listed_is_told_its_id_and_trains_along_once_it_is(tmp_path: Path) -> None:
    a = found_run(tmp_path, "anna", "--set", "admission.mode=closed", "--set", "strategy.inner_steps=4")
    port = free_port()
    options = common_options(tmp_path / "bob", port)
    with sites(a):
        a.start_without_model()
        address: str = wait_until(lambda: a.status().get("join_address"), "address", PATIENCE_S, a.describe)
        link = link_of(a.run_dir, address)
        says("give --dir DIR, for a directory keeps the id", joined(link, "--host", "127.0.0.1"))
        told = [says(", then give the same command again", joined(link, *options)) for _ in range(2)]
        says("ask its operator to list this site there", joined(link, *options))
        ids = [re.search(r"list this site there \(network.peers_allowed\), as (\w+), then", one) for one in told]
        assert ids[0] is not None and ids[1] is not None and ids[0][1] == ids[1][1], told
    site_toml = open_run_dir(a.run_dir).site_toml
    text, listed = site_toml.read_text(), f'peers_allowed = ["{ids[0][1]}"]'
    site_toml.write_text(text.replace("peers_allowed = []", listed))
    assert listed in site_toml.read_text()
    with sites(a):
        a.start_without_model()
        wait_until(lambda: a.status().get("join_address"), "address", PATIENCE_S, a.describe)
        bare, peer = re.sub(r"/p2p/\w+", "", link), a.says("peer_id")
        says("name the sites that this one lets in with", joined(bare, *options))
        done = joined(bare, *options, "--set", f'network.peers_allowed=["{peer}"]')
        assert done.returncode == 0, shlex.join(done.args) + done.stderr
        b = SiteProcess("bob", tmp_path / "bob", port)
        with sites(b):
            b.start_without_model()
            wait_until(lambda: ids[0][1] in contributors(a), "work of bob", PATIENCE_S, b.describe)
