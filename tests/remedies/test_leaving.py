"""Remedies of alerts with which a site leaves: it leaves with that alert, the words are followed, rounds go on."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dilocoxd.store.rundir import open_run_dir
from dilocoxd.telemetry.alerts import kind_of
from tests.adversary.daemon import patched
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import free_port, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of, now, wait_event
from tests.remedies.test_findings import invoke, of_site, set_site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PATIENCE_S = 90
LONG_PHASE_S = 1000.0
"""Nothing is contributed meanwhile, so that no round meets the fault before the part that is meant."""
SMALL = 4500
"""Bytes of a file on a disk that is as good as full: an entry is larger, shared buffers that are written are not."""


def require_words(code: str, *words: str) -> None:
    """The remedy says what this test does."""
    for word in words:
        assert word in kind_of(code).remedy, f"the remedy of {code} no longer speaks of {word}: follow what it says"


def left_with(site: SiteProcess, code: str, since: float, exit_code: int = 1) -> dict[str, Any]:
    """The alert in the events of a site, once it has left by itself."""
    process = site.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, f"the end of {site.name}", PATIENCE_S, site.describe)
    assert process.poll() == exit_code, site.describe()
    assert "Traceback" not in site.log_path.read_text()
    raised = events_of(site, "alert.raised", since=since)
    found = next((one for one in raised if one["code"] == code), None)
    assert found is not None, f"left with {[(one['code'], one['text']) for one in raised]}, not with {code}"
    assert found["remedy"] == kind_of(code).remedy, "what the operator is told is what the runbook says"
    return found


def assert_trains(site: SiteProcess) -> None:
    """Started again, it adds to the chain that it had."""
    site.start_without_model()
    height = wait_until(lambda: site.status().get("height"), "an answer", PATIENCE_S, site.describe)
    site.wait_height(height + 1, PATIENCE_S)


@contextlib.contextmanager
def frozen(site: SiteProcess) -> Iterator[None]:
    """The daemon alone stands still."""
    assert site.process is not None
    os.kill(site.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(site.process.pid, signal.SIGCONT)


@pytest.mark.remedy("alert:start_failed", "alert:alerts_failed", "alert:network_failed", "alert:recovery_failed")
def test_a_site_that_had_to_leave_comes_back_as_told(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S, height=1) as a:
        full_disk_while_catching_up(tmp_path, a)
        assert a.stop() == 0
        cannot_start(a)
        disk_gone(a)
        port_lost(a)


def full_disk_while_catching_up(folder: Path, a: SiteProcess) -> None:
    require_words("recovery_failed", "`dilocoxd doctor`", "`dilocoxd log verify RUN_DIR`", "start the daemon again")
    b, since = join_run(folder, "b", a), now()
    with sites(b):
        with frozen(a):
            b.start_without_model()
            wait_until(lambda: b.status().get("state") == "joining", "b to join", PATIENCE_S, b.describe)
            assert b.process is not None
            psutil.Process(b.process.pid).rlimit(psutil.RLIMIT_FSIZE, (SMALL, SMALL))
        left_with(b, "recovery_failed", since)
        assert {one.level for one in of_site(b.run_dir).values()} <= {"ok", "info", "warning"}, "nothing else is wrong"
        assert invoke("log", "verify", str(b.run_dir)).return_value == 0
        assert_trains(b)
        assert b.stop() == 0


def cannot_start(a: SiteProcess) -> None:
    require_words("start_failed", "Read the text of the alert", "correct that, start the daemon again")
    since = now()
    with socket.socket() as other:
        take(other, port_of(a))
        a.start_without_model()
        text = left_with(a, "start_failed", since, exit_code=78)["text"]
        assert f"port {port_of(a)}" in text and "network.port" in text
        set_site(a.run_dir, f"network.port={free_port()}")
        assert_trains(a)
        assert a.stop() == 0


def disk_gone(a: SiteProcess) -> None:
    require_words("alerts_failed", "Check the disk of the run directory; start the daemon again")
    since, elsewhere = now(), a.run_dir.with_name("unmounted")
    a.start_without_model(LONG_PHASE_S)
    wait_until(lambda: a.status().get("state") == "training", "training", PATIENCE_S, a.describe)
    a.run_dir.rename(elsewhere)
    assert a.process is not None
    a.process.wait(PATIENCE_S)
    elsewhere.rename(a.run_dir)
    assert str(a.run_dir) in left_with(a, "alerts_failed", since)["text"]
    assert_trains(a)
    assert a.stop() == 0


def port_lost(a: SiteProcess) -> None:
    require_words("network_failed", "`dilocoxd doctor`", "choose another one in site.toml", "start the daemon again")
    since = now()
    patched(a, "limits.few_restarts", phase_s=LONG_PHASE_S)
    # The status names p2pd before it serves, and one that dies by then ends the start instead (start_failed).
    p2pd = wait_event(a, "worker.started", since, PATIENCE_S, worker="p2pd")["pid"]
    port = port_of(a)
    with socket.socket() as other:
        with frozen(a):
            os.kill(p2pd, signal.SIGKILL)
            take(other, port)
        left_with(a, "network_failed", since)
        found = of_site(a.run_dir)["port_network"]
        assert found.level == "error" and str(port) in found.text
        set_site(a.run_dir, f"network.port={free_port()}")
        assert of_site(a.run_dir)["port_network"].level == "ok"
        assert_trains(a)


def port_of(site: SiteProcess) -> int:
    """network.port."""
    return open_run_dir(site.run_dir).load()[1].network.port


def take(other: socket.socket, port: int) -> None:
    """Listen where p2pd listened, once the kernel has taken its socket away."""
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError:
            assert time.monotonic() < deadline, f"port {port} stays taken"
            time.sleep(0.05)
        else:
            return
