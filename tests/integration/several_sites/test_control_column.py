"""The control column alone: real daemons, real network, real logs; only models and workers are left out (fake_site)."""

import signal
import socket
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from dilocoxd.cli.declared.replay import replay
from dilocoxd.ids import RunId
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.wire.entry import entry_hash, genesis_hash
from tests.harness.running.openings import founder, joiner, pair
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = pytest.mark.processes
PATIENCE_S = 90


def contributors(site: SiteProcess, round_index: int) -> list[str]:
    rows = site.get(f"/v1/rounds?from={round_index}&limit=1") or [{"contributors": []}]
    return sorted(c["peer"] for c in rows[0]["contributors"])


def wait_joint_round(members: list[SiteProcess]) -> None:
    """Until the newest entry of all members names all of them."""
    ids = {wait_until(lambda m=m: m.status().get("peer_id"), m.name, PATIENCE_S, m.describe) for m in members}

    def is_joint() -> bool:
        rows = members[0].rounds()
        return bool(rows) and any({c["peer"] for c in row["contributors"]} == ids for row in rows[-3:])

    wait_until(is_joint, f"a round of {len(ids)} sites", PATIENCE_S, members[0].describe)


def log_heads(site: SiteProcess) -> list[str]:
    run_dir = open_run_dir(site.run_dir)
    manifest, _ = run_dir.load()
    log = EntryLog(run_dir.log, RunId(manifest.run_id), genesis_hash(manifest.run_id, manifest.sha256()))
    return [entry_hash(signed.entry).hex() for signed in log.entries()]


def assert_same_chain(members: list[SiteProcess]) -> None:
    """The logs on disk agree as far as the shortest goes, less what was decided after it left."""
    chains = [log_heads(member) for member in members]
    shortest = min(len(chain) for chain in chains)
    assert shortest > 0
    assert all(chain[: shortest - 1] == chains[0][: shortest - 1] for chain in chains)


def test_two_sites_commit_rounds_together_and_leave_cleanly(tmp_path: Path) -> None:
    with pair(tmp_path, PATIENCE_S) as (a, b):
        wait_joint_round([a, b])

        def trains_with_a() -> bool:
            status = b.status()  # read once; who was slow to answer may be suspected for a moment
            return status["peers"]["live"] == 1 and status["state"] == "training"

        wait_until(trains_with_a, "b to train with a", PATIENCE_S, b.describe)
        assert b.stop() == 0
        height = a.status()["height"]
        a.wait_height(height + 2, PATIENCE_S)
        assert a.stop() == 0
        assert_same_chain([a, b])
    for site in (a, b):
        played = CliRunner().invoke(replay, [str(site.run_dir), "--last", "20"], standalone_mode=False)
        assert played.return_value == 0, f"{site.name}: {played.output[-2000:]}"


def test_founder_dies_the_others_go_on_and_it_comes_back(tmp_path: Path) -> None:
    with pair(tmp_path, PATIENCE_S) as (a, b):
        b.wait_height(2, PATIENCE_S)
        with joiner(tmp_path, "c", b) as c:
            wait_joint_round([a, b, c])
            a.kill_tree()
            height = b.status()["height"]
            b.wait_height(height + 3, PATIENCE_S)
            wait_joint_round([b, c])
            a.start_without_model()
            wait_joint_round([c, a, b])
            assert c.stop() == 0
            assert b.stop() == 0
            assert a.stop() == 0
            assert_same_chain([a, b, c])


def test_killed_daemon_leaves_no_process_behind(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S) as a:
        tree = a.tree()
        assert len(tree) > 1
        tree[0].send_signal(signal.SIGKILL)
        assert not psutil.wait_procs(tree[1:], timeout=PATIENCE_S)[1], "what a killed daemon leaves behind"


@pytest.mark.remedy("alert:worker_p2pd_lost")
def test_p2pd_is_started_again_and_rounds_go_on(tmp_path: Path) -> None:
    with pair(tmp_path, PATIENCE_S) as (a, b):
        wait_joint_round([a, b])
        p2pd = a.status()["workers"]["p2pd"]["pid"]
        next(p for p in a.tree() if p.pid == p2pd).kill()
        wait_until(lambda: a.status()["workers"]["p2pd"]["restarts"] >= 1, "a new p2pd", PATIENCE_S, a.describe)
        height = a.status()["height"]
        a.wait_height(height + 1, PATIENCE_S)
        wait_joint_round([a, b])


@pytest.mark.remedy("alert:rounds_failed", "exit:1")
def test_full_disk_ends_the_daemon_cleanly_and_nothing_is_lost(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S, height=2) as a:
        assert a.process is not None
        # An entry on disk is larger than this, every shared buffer that is written is smaller.
        psutil.Process(a.process.pid).rlimit(psutil.RLIMIT_FSIZE, (4500, 4500))
        assert a.process.wait(PATIENCE_S) == 1
        before = log_heads(a)
        a.start_without_model()
        a.wait_height(len(before) + 1, PATIENCE_S)
        assert a.stop() == 0
        assert log_heads(a)[: len(before)] == before


def test_second_daemon_on_a_run_directory_is_refused(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S) as a:
        second = SiteProcess("second", a.run_dir, a.port)
        with sites(second):
            second.start_without_model()
            assert second.process is not None
            assert second.process.wait(PATIENCE_S) == 78
            assert "holds this directory, as a running daemon does" in second.log_path.read_text()
        height = a.status()["height"]
        a.wait_height(height + 1, PATIENCE_S)


def test_ports_in_use_are_named(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with socket.socket() as taken, sites(a):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as `free_port`: connections may linger there
        taken.bind(("127.0.0.1", a.port))
        taken.listen()
        a.start_without_model()
        assert a.process is not None
        assert a.process.wait(PATIENCE_S) == 78
        assert f"port {a.port}" in a.log_path.read_text()
    _, site = open_run_dir(a.run_dir).load()
    with socket.socket() as taken, sites(a):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as `free_port`: connections may linger there
        taken.bind(("127.0.0.1", site.network.port))
        taken.listen()
        a.start_without_model()
        assert a.process.wait(PATIENCE_S) == 78
        assert f"port {site.network.port}" in a.log_path.read_text()
