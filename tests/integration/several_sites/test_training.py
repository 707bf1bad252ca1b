"""The whole path with real trainers and outer workers: join, train together, lose parts or all of a site, come back.

Few tests with long stories: starting a site costs more than what is shown with it.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dilocoxd.machines.recovery.interface.limits import RecoveryLimits
from tests.harness.recorded.waiting_reasons import Wait, waits
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import stood_still_s
from tests.harness.running.training import (
    PATIENCE_S,
    assert_logs_agree,
    assert_states_agree,
    founder_options,
    log_of,
    site_options,
    wait_contributions_after,
    wait_joint_round,
    write_corpus,
)

EXCHANGE = ("exchanging", "voting")
FROZEN_S = 30.0
GONE_S = 10.0
"""Until a peer that says nothing counts as dead."""
TREE_GONE_S = 60.0
LATE_S = 5.0
"""By how much a busy machine may be late."""
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Corpus and token cache of all tests here: tokenised once."""
    folder = tmp_path_factory.mktemp("shared")
    write_corpus(folder)
    yield folder


@pytest.fixture
def founder(tmp_path: Path, shared: Path) -> Iterator[SiteProcess]:
    """A site that has committed a round alone."""
    site = found_run(tmp_path, "a", *founder_options(shared), "--set", "log.recording_mib=16")
    with sites(site):
        site.start()
        site.wait_height(1, PATIENCE_S)
        yield site


def worker_process(site: SiteProcess, name: str) -> psutil.Process:
    """A process of one worker; of the trainers the last rank."""
    worker = site.status()["workers"][name]
    pid = worker["pids"][-1] if name == "trainer" else worker["pid"]
    return psutil.Process(pid)


def tells_of_two_others(site: SiteProcess) -> bool:
    """What real trainers measured there is known here: a loss of text that is between nothing and a guess."""
    told = (site.get("/v1/losses") or {"sites": []})["sites"]
    by_peer = {one["peer_id"]: one["inner_loss"] for one in site.get("/v1/peers") or ()}
    newest = [by_peer[one["peer_id"]] for one in told]
    return len(told) == 2 and all(loss is not None and 0.5 < loss < 12.0 for loss in newest)


@pytest.mark.remedy("alert:worker_outer_lost")
def test_two_sites_train_one_model_and_survive_the_loss_of_any_worker(
    tmp_path: Path, shared: Path, founder: SiteProcess
) -> None:
    b = join_run(tmp_path, "b", founder, *site_options(shared, stages=2))
    with sites(b):
        b.start()
        wait_joint_round([founder, b])
        assert_states_agree(founder, b)
        assert founder.get("/v1/losses")["validation"]
        for victim in ("outer", "trainer", "p2pd"):
            height = b.status()["height"]
            worker_process(b, victim).kill()
            wait_until(lambda v=victim: b.status()["workers"][v]["restarts"] >= 1, f"a new {victim}", PATIENCE_S)
            wait_contributions_after(b, height + 2)
        assert_states_agree(founder, b)
        assert [b.stop(), founder.stop()] == [0, 0]
        assert_logs_agree(founder, b)


def test_founder_is_killed_in_an_exchange_and_comes_back(tmp_path: Path, shared: Path, founder: SiteProcess) -> None:
    b = join_run(tmp_path, "b", founder, *site_options(shared))
    with sites(b):
        b.start()
        b.wait_height(2, PATIENCE_S)
        c = join_run(tmp_path, "c", b, *site_options(shared))
        with sites(c):
            c.start()
            wait_joint_round([founder, b, c])
            for site in (founder, b, c):
                wait_until(
                    lambda s=site: tells_of_two_others(s), "the losses of both others", PATIENCE_S, site.describe
                )
            wait_until(lambda: founder.status()["round"]["state"] in EXCHANGE, "an exchange", PATIENCE_S)
            founder.kill_tree()
            height = b.status()["height"]
            b.wait_height(height + 3, PATIENCE_S)
            founder.start()
            wait_contributions_after(founder, height + 3)
            assert_states_agree(founder, b, c)
            assert [site.stop() for site in (c, founder, b)] == [0, 0, 0]
            assert_logs_agree(founder, b, c)


def test_frozen_site_holds_up_nobody_and_a_killed_daemon_takes_its_tree_with_it(
    tmp_path: Path, shared: Path, founder: SiteProcess
) -> None:
    b = join_run(tmp_path, "b", founder, *site_options(shared))
    with sites(b):
        b.start()
        wait_joint_round([founder, b])
        b.signal_tree(signal.SIGSTOP)
        frozen_at, height = time.monotonic(), founder.status()["height"]
        founder.wait_height(height + 3, PATIENCE_S)
        wait_until(lambda: time.monotonic() - frozen_at > FROZEN_S, "the end of the frost", FROZEN_S + 1)
        thawed_at = time.monotonic()
        b.signal_tree(signal.SIGCONT)
        wait_contributions_after(b, founder.status()["height"])
        assert_states_agree(founder, b)
        tree = b.tree()
        assert len(tree) > 4
        tree[0].kill()
        assert not psutil.wait_procs(tree, timeout=TREE_GONE_S)[1]
        assert b.process is not None
        b.process.wait(TREE_GONE_S)
        height = founder.status()["height"]
        b.start()
        wait_contributions_after(b, height + 1)
        assert_states_agree(founder, b)
        assert [b.stop(), founder.stop()] == [0, 0]
        assert_logs_agree(founder, b)
        frost = [wait for wait in waits(founder.run_dir) if frozen_at < wait.ended_at < thawed_at]
        assert_waits_are_within_the_grace(founder, frost)


def assert_waits_are_within_the_grace(site: SiteProcess, frost: list[Wait]) -> None:
    """What a site waited for while the other one was frozen, and what it would have waited at most, less the time in
    which its own machine let it stand still.

    For a contribution: the grace, which follows the phases that it measured; for a proposal, segments or votes of a
    frozen coordinator or owner: until that one counts as gone. Then nothing.
    """
    unix = time.time() - time.monotonic()

    def seconds(wait: Wait) -> float:
        end = unix + wait.ended_at
        return wait.seconds - stood_still_s(site, end - wait.seconds, end)

    rounds = sorted({wait.round for wait in frost})
    held_up = [(n, [w for w in frost if w.round == n and is_for_others(w)]) for n in rounds]
    for number, waited in held_up:
        told = (f"{wait.seconds:.2f} s (grace {wait.grace_s:.2f} s) {wait.reason}" for wait in waited)
        print(f"round {number}: {'; '.join(told)}")
    assert len(rounds) >= 3
    for wait in frost:
        if "are not ready" in wait.reason:
            assert seconds(wait) < wait.grace_s + LATE_S, wait
    for number, waited in held_up:
        grace_s = max((w.grace_s for w in waited), default=0.0)
        assert sum(map(seconds, waited)) < grace_s + GONE_S + LATE_S, number
    assert sum(map(seconds, held_up[-2][1])) < LATE_S


def is_for_others(wait: Wait) -> bool:
    """Not for the own phase, outer worker or disk."""
    own = ("a site to finish its phase", "the outer worker", "the log, which stores")
    return not any(reason in wait.reason for reason in own)


def test_newcomer_starts_from_a_snapshot_and_not_from_the_beginning(tmp_path: Path, shared: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(shared, inner_steps=3))
    with sites(a):
        a.start()
        for height in range(RecoveryLimits().replay_max + 9):
            a.wait_height(height, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(shared))
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
