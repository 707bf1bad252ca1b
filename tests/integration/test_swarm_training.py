"""The whole path with real trainers and outer workers: join, train together, lose a site, come back, leave."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from dilocoxd.daemon.recovery_driver import REPLAY_MAX
from tests.harness.runs import found_run, join_run
from tests.harness.sites import sites, wait_until
from tests.harness.training import (
    PATIENCE_S,
    assert_logs_agree,
    assert_states_agree,
    founder_options,
    log_of,
    site_options,
    wait_contributions_after,
    wait_joint_round,
)

EXCHANGE = ("exchanging", "voting")
FROZEN_S = 30.0
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_sites_train_one_model(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path, stages=2))
        with sites(b):
            b.start()
            wait_joint_round([a, b])
            assert_states_agree(a, b)
            losses = a.get("/v1/losses")
            assert losses["validation"]
            assert b.stop() == 0
            assert a.stop() == 0
            assert_logs_agree(a, b)


def test_founder_is_killed_in_an_exchange_and_comes_back(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        with sites(b):
            b.start()
            b.wait_height(2, PATIENCE_S)
            c = join_run(tmp_path, "c", b, *site_options(tmp_path))
            with sites(c):
                c.start()
                wait_joint_round([a, b, c])
                wait_until(lambda: a.status()["round"]["state"] in EXCHANGE, "an exchange", PATIENCE_S, a.describe)
                a.kill_tree()
                height = b.status()["height"]
                b.wait_height(height + 3, PATIENCE_S)
                a.start()
                wait_contributions_after(a, height + 3)
                assert_states_agree(a, b, c)
                assert [site.stop() for site in (c, a, b)] == [0, 0, 0]
                assert_logs_agree(a, b, c)


def test_frozen_site_does_not_hold_up_the_others(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        with sites(b):
            b.start()
            wait_joint_round([a, b])
            b.signal_tree(signal.SIGSTOP)
            frozen_at, height = time.monotonic(), a.status()["height"]
            a.wait_height(height + 3, PATIENCE_S)
            wait_until(lambda: time.monotonic() - frozen_at > FROZEN_S, "the end of the frost", FROZEN_S + 1)
            b.signal_tree(signal.SIGCONT)
            wait_contributions_after(b, height + 3)
            assert_states_agree(a, b)


@pytest.mark.parametrize("victim", ["outer", "trainer", "p2pd"])
def test_site_survives_the_loss_of_a_process(tmp_path: Path, victim: str) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        with sites(b):
            b.start()
            wait_joint_round([a, b])
            worker = b.status()["workers"][victim]
            pid = worker["pids"][-1] if victim == "trainer" else worker["pid"]
            next(process for process in b.tree() if process.pid == pid).kill()
            height = b.status()["height"]
            wait_contributions_after(b, height + 2)
            assert b.status()["workers"][victim]["restarts"] >= 1
            assert_states_agree(a, b)
            assert [b.stop(), a.stop()] == [0, 0]
            assert_logs_agree(a, b)


def test_daemon_killed_alone_takes_its_tree_with_it_and_comes_back(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        with sites(b):
            b.start()
            wait_joint_round([a, b])
            tree = b.tree()
            assert len(tree) > 4
            tree[0].kill()
            _, alive = psutil.wait_procs(tree, timeout=10)
            assert not alive
            assert b.process is not None
            b.process.wait(1)
            height = a.status()["height"]
            b.start()
            wait_contributions_after(b, height + 1)
            assert_states_agree(a, b)
            assert [b.stop(), a.stop()] == [0, 0]
            assert_logs_agree(a, b)


def test_newcomer_starts_from_a_snapshot_and_not_from_the_beginning(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=15))
    with sites(a):
        a.start()
        a.wait_height(REPLAY_MAX + 8, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        with sites(b):
            b.start()
            wait_contributions_after(b, 0)
            assert_states_agree(a, b)
            assert [b.stop(), a.stop()] == [0, 0]
            assert_logs_agree(a, b)
            log = log_of(b)
            assert not log.has_payload(0)
            assert log.has_payload(log.height - 1)
            b.start()
            b.wait_height(log.height, PATIENCE_S)
