"""Ctrl-C in a terminal is a goodbye: the other site hears it, the screen stays clean and says how to go on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import ROOT, STOP_S, SiteProcess, sites, wait_until
from tests.harness.running.strikes import Event, events_of, now, stood_still_s, wait_event
from tests.harness.running.terminals import INTERRUPT, in_terminal
from tests.harness.running.training import PATIENCE_S, founder_options, site_options

pytestmark = [pytest.mark.processes, pytest.mark.slow]
NUM_STOPS = int(os.environ.get("DILOCOXD_CTRL_C", "2"))
"""20 of 20 is what was asked for, a quarter of an hour on a busy machine (docs/lab/inputs.md)."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TERM": "xterm"}
BAD_NEWS = ("Traceback", "Error", "ERROR", "WARNING", "exception", "go-libp2p")
NO_CPU = ("loop.blocked", "the daemon stood still for")
"""Lines about a machine that had no CPU for the daemon meanwhile: no news of a stop."""


def wait_training(site: SiteProcess, said: Callable[[], str]) -> None:
    """Until its trainers train, and the terminal has something to lose."""

    def is_training() -> bool:
        status = site.status()
        return status.get("state") == "training" and status["phase"]["inner_step"] > 0

    wait_until(is_training, "training in a terminal", PATIENCE_S, said)


def is_of_the_machine(lost: Event, *both: SiteProcess) -> bool:
    """Whether a daemon had no CPU in the silence for which one was held for lost before its goodbye came."""
    return any(stood_still_s(site, lost["time"] - lost["silent_s"], lost["time"]) for site in both)


def close_terminal(site: SiteProcess, command: list[str], folder: Path) -> int:
    """Exit code of `command` where somebody closes its window while it trains: SIGHUP, and nobody reads any more."""
    read_end, write_end = os.pipe()
    outputs = {"stdout": write_end, "stderr": write_end}
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **ENVIRONMENT}, **outputs)
    try:
        os.close(write_end)
        wait_training(site, lambda: os.read(read_end, 1 << 16).decode())
        os.close(read_end)
        process.send_signal(signal.SIGHUP)
        return process.wait(STOP_S)
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_is_a_goodbye_and_leaves_a_clean_screen(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path))
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        command = [sys.executable, "-m", "dilocoxd", "run", b.run_dir.name]
        for _ in range(NUM_STOPS):
            with in_terminal(command, tmp_path, ENVIRONMENT) as terminal:
                wait_training(b, lambda: terminal.text)
                group = os.getpgid(terminal.process.pid)
                children = psutil.Process(terminal.process.pid).children(recursive=True)
                assert len(children) >= 5, "p2pd, fork server, outer worker, trainer, reaper"
                assert not [c.cmdline() for c in children if os.getpgid(c.pid) == group], (
                    "Ctrl-C is for the daemon only"
                )
                began = now()
                terminal.press(INTERRUPT)
                assert terminal.wait(STOP_S) == 0, terminal.text
            wait_event(a, "peer.left", began, PATIENCE_S, peer=events_of(b, "daemon.started")[0]["peer_id"])
            assert not [lost for lost in events_of(a, "peer.lost", since=began) if not is_of_the_machine(lost, a, b)]
            after = terminal.text.partition("^C")[2]
            of_stop = [line for line in after.splitlines() if not any(words in line for words in NO_CPU)]
            assert not [line for line in of_stop if any(word in line for word in BAD_NEWS)], after
            assert after.splitlines()[-1] == "stopped; go on with: dilocoxd run b"
        # A window that is closed is a goodbye as well; the daemon died in the middle of what it did.
        began = now()
        assert close_terminal(b, command, tmp_path) == 0
        left = wait_event(a, "peer.left", began, PATIENCE_S, peer=events_of(b, "daemon.started")[0]["peer_id"])
        assert not [lost for lost in events_of(a, "peer.lost", since=began) if not is_of_the_machine(lost, a, b)], left
        assert events_of(b, "daemon.stopped")[-1]["reason"] == "SIGHUP"
