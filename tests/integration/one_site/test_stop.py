"""Stopping under bad luck: p2pd dies in the middle of it, or the loop does not come back. It always ends in time."""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dilocoxd.daemon.app import BLOCKED_LIMIT_S, STOP_LIMIT_S
from dilocoxd.daemon.process.stop_signals import EXIT_NOW, heard
from tests.adversary.daemon import patched
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import GONE_S, PYTHON, ROOT, SiteProcess, sites, wait_until
from tests.harness.running.strikes import Event, Fault, events_of, now, wait_event
from tests.harness.running.training import write_corpus

pytestmark = pytest.mark.processes
PATIENCE_S = 90
SERVICE_LIMIT_S = 20.0
"""What a service manager gives us before it kills."""

BLOCKED = """
import asyncio, sys, time, uvloop
from pathlib import Path
from dilocoxd.daemon.process.stop_signals import StopSignals

async def main():
    with StopSignals(print, Path(sys.argv[1]), float(sys.argv[2])):
        print("blocked", flush=True)
        time.sleep(600)

uvloop.run(main())
"""


def stop_held(site: SiteProcess, fault: Fault) -> psutil.Process:
    """SIGTERM, and everything but the network is over; its p2pd, which must live on until the goodbye is said."""
    p2pd = psutil.Process(site.status()["workers"]["p2pd"]["pid"])
    fault.arm("goodbye")
    assert site.process is not None
    site.process.send_signal(signal.SIGTERM)
    fault.wait_held("goodbye", PATIENCE_S)
    wait_until(lambda: "goodbye" in site.status().get("waiting_for", ""), "the rest", PATIENCE_S, site.describe)
    assert p2pd.is_running() and p2pd.status() != psutil.STATUS_ZOMBIE
    return p2pd


def alerts(site: SiteProcess, since: float) -> list[str]:
    """Texts of what was raised, but for a loop that this machine let stand still."""
    return [one["text"] for one in events_of(site, "alert.raised", since=since) if one["code"] != "loop_blocked"]


def importing(site: SiteProcess) -> psutil.Process | None:
    """Its fork server, as soon as it runs."""
    return next((each for each in site.tree() if "dilocoxd.ipc.fork_server" in each.cmdline()), None)


def stopped_quietly(site: SiteProcess, module: str) -> Event:
    """The only daemon.stopped of a daemon that ends by itself, with exit code 0 and without an alert."""
    with sites(site):
        began = now()
        site.start_command([*PYTHON, module, str(site.run_dir)])
        assert site.process is not None
        assert site.process.wait(PATIENCE_S) == 0
        assert not alerts(site, began), "it waited for workers that nobody had started, or failed"
        (stopped,) = events_of(site, "daemon.stopped")
    return stopped


def test_p2pd_lives_until_the_goodbye_is_said_and_is_not_started_again_in_a_stop(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", "--set", "snapshot.every_rounds=1000")  # without a model none can be written
    with sites(a):
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a)
        fault = Fault(b)
        with sites(b):
            for is_killed in (False, True):
                patched(b, "limits.long_stop")  # however long a busy machine takes for what is looked at meanwhile
                wait_until(lambda: b.status().get("state") == "training", "b in the run", PATIENCE_S, b.describe)
                began = now()
                p2pd = stop_held(b, fault)
                if is_killed:
                    p2pd.kill()
                    wait_event(b, "worker.died", began, PATIENCE_S, worker="p2pd")
                fault.release()
                assert b.process is not None
                assert b.process.wait(SERVICE_LIMIT_S) == 0
                assert not events_of(b, "worker.started", since=began) and not alerts(b, began)
                if not is_killed:
                    wait_event(a, "peer.left", began, PATIENCE_S, peer=events_of(b, "daemon.started")[0]["peer_id"])


def test_daemon_told_to_stop_while_it_starts_leaves_cleanly(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        began = now()
        a.start_without_model()
        wait_until(a.status, "the API", PATIENCE_S, a.describe)
        tree = a.tree()
        assert a.stop() == 0
        assert not alerts(a, began)
        assert not psutil.wait_procs(tree, timeout=GONE_S)[1]


def test_daemon_told_to_stop_while_its_outer_worker_starts_ends_it_by_its_word(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", "--set", f'data.corpus="{write_corpus(tmp_path)}"')
    a.cold = True  # its fork server does its own imports, which take a second at least
    with sites(a):
        began = now()
        a.start()
        wait_event(a, "worker.started", began, PATIENCE_S, worker="p2pd")
        assert a.stop() == 0
        assert not alerts(a, began), "it was never told to stop, and waited for in vain"


def test_daemon_told_to_stop_waits_for_no_worker_that_never_came(tmp_path: Path) -> None:
    """Imports on a machine without CPU to spare last as long as they like."""
    a = found_run(tmp_path, "a", "--set", f'data.corpus="{write_corpus(tmp_path)}"')
    a.cold = True
    with sites(a):
        began = now()
        a.start()
        fork_server = wait_until(lambda: importing(a), "the fork server", PATIENCE_S, a.describe)
        fork_server.suspend()
        wait_event(a, "worker.started", began, PATIENCE_S, worker="p2pd")
        assert a.stop() == 0
        assert not alerts(a, began), "it waited for what cannot come"
        assert not fork_server.is_running()


def test_daemon_that_native_code_aborts_says_where_it_was(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        a.start_without_model()
        wait_until(a.status, "the API", PATIENCE_S, a.describe)
        assert a.process is not None
        resource.prlimit(a.process.pid, resource.RLIMIT_CORE, (0, 0))  # nobody wants 400 MB of it
        a.process.send_signal(signal.SIGABRT)
        assert a.process.wait(PATIENCE_S) == -signal.SIGABRT
        said = a.log_path.read_text()
    assert "Fatal Python error: Aborted" in said
    assert "in run_daemon" in said


def test_a_ctrl_c_that_p2pd_hears_first_is_no_failed_start(tmp_path: Path) -> None:
    stopped = stopped_quietly(found_run(tmp_path, "a"), "tests.harness.synthetic.interrupted_daemon")
    assert stopped["reason"] == "SIGINT"


def test_daemon_told_to_stop_before_any_part_has_begun_waits_for_none(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    assert stopped_quietly(a, "tests.harness.synthetic.stopped_daemon")["exit_code"] == 0
    assert "Warning" not in a.log_path.read_text()


@pytest.fixture
def blocked(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process whose loop will not come back; its limit is one second, its stacks go to `stacks`."""
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, str(tmp_path / "stacks"), "1"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "blocked\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_process_whose_loop_is_blocked_ends_at_its_limit_and_says_where_it_hung(
    tmp_path: Path, blocked: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    blocked.send_signal(number)
    assert blocked.wait(PATIENCE_S) == 1
    stacks = (tmp_path / "stacks").read_text()
    assert "in main" in stacks and "line 9" in stacks
    assert STOP_LIMIT_S < BLOCKED_LIMIT_S < SERVICE_LIMIT_S


def test_second_interrupt_means_now_even_if_the_loop_is_blocked(
    tmp_path: Path, blocked: "subprocess.Popen[str]"
) -> None:
    blocked.send_signal(signal.SIGINT)
    wait_until((tmp_path / "stacks").exists, "the first interrupt to be seen", PATIENCE_S)
    blocked.send_signal(signal.SIGINT)
    assert blocked.wait(PATIENCE_S) == EXIT_NOW


def test_terminal_that_is_closed_ends_no_daemon_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert signal.SIGHUP in heard()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert heard() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)
