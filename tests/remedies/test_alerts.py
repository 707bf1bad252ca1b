"""Remedies that need a running site: one real site is broken again and again, and well after what the words ask for."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dilocoxd.telemetry.alerts import kind_of
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of, now
from tests.harness.running.training import PATIENCE_S, founder_options
from tests.remedies.names import REMEDIES
from tests.remedies.test_findings import set_site

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
SMALL = 4096
"""Bytes that a file may have on a disk that is as good as full."""
FROST_S = 2.0
SETTINGS = ("snapshot.every_rounds=1000000", "workers.restarts_max=1")


def dilocoxd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dilocoxd", *arguments], capture_output=True, text=True, check=False)


def answer(site: SiteProcess, path: str) -> int:
    """Status of a health check; 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{site.port}{path}", timeout=5) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def alerts(site: SiteProcess) -> set[str]:
    """Codes of the alerts that stand."""
    return {str(one["code"]) for one in site.get("/v1/alerts") or []}


def until_well(site: SiteProcess) -> None:
    wait_until(lambda: answer(site, "/readyz") == 200, "readyz", PATIENCE_S, site.describe)


@pytest.mark.remedy("alert:snapshot_failed", "alert:daemon_down", "health:1", "health:2")
@pytest.mark.remedy("alert:loop_blocked", "alert:worker_trainer_lost", "alert:site_failed")
def test_full_disk_pause_frost_lost_text_and_death_are_mended_as_told(tmp_path: Path) -> None:
    options = [part for one in SETTINGS for part in ("--set", one)]
    site = found_run(tmp_path, "a", *founder_options(tmp_path), *options)
    with sites(site):
        site.start()
        site.wait_height(1, PATIENCE_S)
        until_well(site)
        pause(site)
        full_disk(site)
        frozen_loop(site)
        lost_text(tmp_path, site)
        death(site)


def pause(site: SiteProcess) -> None:
    assert "`dilocoxd resume` if it is paused" in REMEDIES["health:2"]
    assert dilocoxd("pause", str(site.run_dir)).returncode == 0
    wait_until(lambda: answer(site, "/readyz") == 503, "not ready", PATIENCE_S, site.describe)
    assert dilocoxd("resume", str(site.run_dir)).returncode == 0
    until_well(site)


def full_disk(site: SiteProcess) -> None:
    assert kind_of("snapshot_failed").remedy.startswith("Free space in the run directory; then `dilocoxd snapshot`")
    outer = site.status()["workers"]["outer"]["pid"]
    resource.prlimit(outer, resource.RLIMIT_FSIZE, (SMALL, resource.RLIM_INFINITY))
    dilocoxd("snapshot", str(site.run_dir))
    wait_until(lambda: "snapshot_failed" in alerts(site), "the alert", PATIENCE_S, site.describe)
    resource.prlimit(outer, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def is_written() -> bool:
        # Again and again: one that the next entry overtakes is not written.
        dilocoxd("snapshot", str(site.run_dir))
        return bool(site.get("/v1/snapshots")) and "snapshot_failed" not in alerts(site)

    wait_until(is_written, "a snapshot", PATIENCE_S, site.describe)


def frozen_loop(site: SiteProcess) -> None:
    """As on a machine where others take the processor."""
    assert "fewer parallel.threads_per_rank" in kind_of("loop_blocked").remedy
    assert site.process is not None
    os.kill(site.process.pid, signal.SIGSTOP)
    time.sleep(FROST_S)  # so long is the frost
    os.kill(site.process.pid, signal.SIGCONT)
    wait_until(lambda: "loop_blocked" in alerts(site), "the alert", PATIENCE_S, site.describe)
    set_site(site.run_dir, "parallel.threads_per_rank=1")
    assert site.stop(60) == 0
    started = now()
    site.start()
    until_well(site)
    is_raised = "loop_blocked" in alerts(site)  # looked at first: what raises it is told before
    is_busy = events_of(site, "loop.blocked", since=started)  # the machine of the tests: then the alert is right again
    assert not is_raised or is_busy


def lost_text(folder: Path, site: SiteProcess) -> None:
    """Trainers that are started again find neither the tokens nor the text."""
    assert kind_of("worker_trainer_lost").remedy.startswith("Read the newest logs/trainer-*.log")
    for words in ("logs/trainer-*.log", "run `dilocoxd doctor`; start it again"):
        assert words in kind_of("site_failed").remedy
    since, height = now(), site.status()["height"]
    for name in ("corpus", "cache"):
        (folder / name).rename(folder / f"{name}-lost")
    os.kill(site.status()["workers"]["trainer"]["pids"][-1], signal.SIGKILL)
    process = site.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "its end", PATIENCE_S, site.describe)
    raised = [one["code"] for one in events_of(site, "alert.raised", since=since) if one["code"] != "loop_blocked"]
    assert raised[0] == "worker_trainer_lost" and raised[-1] == "site_failed"
    newest = max((site.run_dir / "logs").glob("trainer-*.log"), key=lambda path: path.stat().st_mtime)
    assert str(folder / "corpus") in newest.read_text()
    shutil.rmtree(folder / "cache", ignore_errors=True)
    for name in ("corpus", "cache"):
        (folder / f"{name}-lost").rename(folder / name)
    assert "error" not in dilocoxd("doctor", str(site.run_dir)).stdout
    site.start()
    until_well(site)
    site.wait_height(height + 1, PATIENCE_S)


def death(site: SiteProcess) -> None:
    assert "Start it again: it resumes from snapshot and log." in REMEDIES["health:1"]
    assert "start the service again" in kind_of("daemon_down").remedy
    height = site.status()["height"]
    site.kill_tree()
    assert answer(site, "/healthz") == 0
    assert dilocoxd("status", str(site.run_dir)).returncode == 1
    site.start()
    wait_until(lambda: answer(site, "/healthz") == 200, "healthz", PATIENCE_S, site.describe)
    assert site.wait_height(height, PATIENCE_S)["height"] >= height, "it goes on from where it was"
    site.wait_height(height + 1, PATIENCE_S)
