"""A text in the making meets what a daemon meets: two who ask, snapshots that go, Ctrl-C, a killed daemon."""

import contextlib
import json
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from dilocoxd.answers.site import SAMPLE_PROMPT_MAX
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import GONE_S, SiteProcess, sites, wait_until
from tests.harness.running.training import PATIENCE_S, founder_options

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
SNAPSHOTS = ("--set", "snapshot.every_rounds=1")


def ask(site: SiteProcess, prompt: str = "The ") -> tuple[int, str]:
    """Status and words of the answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{site.port}/v1/control/sample",
        json.dumps({"prompt": prompt}).encode(),
        {
            "Authorization": f"Bearer {(site.run_dir / 'api.token').read_text().strip()}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status), str(json.load(answer)["text"])
    except urllib.error.HTTPError as error:
        return error.code, str(json.load(error)["detail"])


def shown(site: SiteProcess) -> dict[str, Any]:
    found: dict[str, Any] = site.get("/v1/sample") or {}
    return found


def writer_of(site: SiteProcess) -> psutil.Process:
    """The process that makes the text, held where it is."""

    def found() -> psutil.Process | None:
        below = site.tree()[0].children()
        return next((one for one in below if "generate" in one.cmdline()), None)

    process: psutil.Process = wait_until(found, "the process of the text", PATIENCE_S, site.describe, poll_s=0.02)
    process.suspend()
    return process


def started(site: SiteProcess) -> psutil.Process:
    """Run it until a text is in the making."""
    site.start()
    wait_until(lambda: site.get("/v1/snapshots"), "a snapshot", PATIENCE_S, site.describe)
    wait_until(lambda: site.status().get("state") == "training", "training", PATIENCE_S, site.describe)
    assert ask(site)[0] == 200
    return writer_of(site)


def test_texts_in_the_making_hold_nothing_up_and_leave_nothing_behind(tmp_path: Path) -> None:
    site = found_run(tmp_path, "a", *founder_options(tmp_path), *SNAPSHOTS)
    with sites(site):
        site.start()
        wait_until(lambda: site.get("/v1/snapshots"), "a snapshot", PATIENCE_S, site.describe)
        two_at_once_and_a_snapshot_that_goes(site)
        for number in (signal.SIGINT, signal.SIGKILL):
            assert site.process is not None
            if site.process.poll() is None:
                assert site.stop() == 0
            writer = started(site)
            assert site.process is not None
            site.process.send_signal(number)
            assert site.process.wait(PATIENCE_S) == (0 if number == signal.SIGINT else -signal.SIGKILL)
            psutil.wait_procs([writer], timeout=GONE_S)
            assert not writer.is_running(), "no text is made for a daemon that is gone"
        assert "Traceback" not in site.log_path.read_text()


def two_at_once_and_a_snapshot_that_goes(site: SiteProcess) -> None:
    assert ask(site, "x" * (SAMPLE_PROMPT_MAX + 1))[0] == 400
    answers: list[tuple[int, str]] = []
    both = [threading.Thread(target=lambda: answers.append(ask(site, "--round 1\n\N{SNOWMAN}"))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(status for status, _ in answers) == [200, 409], answers
    writer = writer_of(site)
    newest = max(int(row["round"]) for row in site.get("/v1/snapshots") or [])

    def is_gone() -> bool:
        return newest not in [int(row["round"]) for row in site.get("/v1/snapshots") or []]

    wait_until(is_gone, "the snapshot replaced by newer ones", PATIENCE_S, site.describe)
    height = site.status()["height"]
    with contextlib.suppress(psutil.AccessDenied):
        writer.nice(0)  # of a busy machine nothing is left over for the lowest priority
    writer.resume()
    wait_until(lambda: shown(site)["state"] != "running", "an end of the text", PATIENCE_S, site.describe)
    found = shown(site)
    assert found["state"] == "done" and found["round"] <= newest, found
    site.wait_height(height + 1, PATIENCE_S)
