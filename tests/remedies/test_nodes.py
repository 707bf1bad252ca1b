"""A head that waits for its node says so in every state; what the words ask for is done, and it goes on."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.ipc.sealed import KEY_BYTES
from dilocoxd.store.admission import write_secret
from dilocoxd.telemetry.alerts import kind_of
from tests.harness.running.run_directories import found_run, free_port
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import PATIENCE_S, founder_options
from tests.integration.nodes.node_process import node_process
from tests.remedies.test_alerts import alerts, until_well

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def told(site: SiteProcess) -> str:
    """Text of the alert, once it stands."""

    def text() -> str:
        return next((str(one["text"]) for one in site.get("/v1/alerts") or [] if one["code"] == "node_missing"), "")

    return str(wait_until(text, "the alert", PATIENCE_S, site.describe))


def nodes_of(site: SiteProcess) -> dict[str, Any]:
    return dict(site.status()["nodes"])


def screen(site: SiteProcess) -> str:
    command = [sys.executable, "-m", "dilocoxd", "status", str(site.run_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.remedy("alert:node_missing")
def test_head_says_which_node_it_waits_for_and_goes_on_once_that_is_started(tmp_path: Path) -> None:
    for words in (
        "the machine that the text names",
        "start `dilocoxd node` there",
        "copy cluster.key_file to it again",
    ):
        assert words in kind_of("node_missing").remedy, "the remedy no longer says so: follow what it says"
    port = free_port()
    settings = ("cluster.outer_parts=1", f"cluster.port={port}")
    site = found_run(
        tmp_path, "a", *founder_options(tmp_path), *(part for one in settings for part in ("--set", one))
    )  # fmt: skip
    with sites(site):
        site.start()
        assert "outer part 1" in told(site)
        assert site.status()["state"] == "starting"
        assert "outer part 1" in site.status()["waiting_for"]
        assert nodes_of(site)["parts"][0]["state"] == "waiting"
        wrong_key(tmp_path, site, port)
        with node_process(port, site.run_dir / "node.key", tmp_path / "node") as node:
            until_well(site)
            wait_until(lambda: "node_missing" not in alerts(site), "its end", PATIENCE_S, site.describe)
            (part,) = nodes_of(site)["parts"]
            assert (part["state"], part["part"]) == ("running", 1) and "127.0.0.1" in part["node"]
            site.wait_height(2, PATIENCE_S)
            node.kill()
            text = told(site)
            assert part["node"] in text, "which node it is"
            lost = nodes_of(site)["parts"][0]
            assert lost["node"] == part["node"] and lost["since"] > part["since"]
            assert site.status()["state"] == "training"
            assert part["node"] in screen(site)
        started_anew(tmp_path, site, port, part["node"])


def wrong_key(folder: Path, site: SiteProcess, port: int) -> None:
    """Who comes with another key is counted, and the alert says so; the node says what to do."""
    write_secret(folder / "other.key", "11" * KEY_BYTES)
    with node_process(port, folder / "other.key", folder / "stranger") as stranger:
        assert stranger.process.wait(PATIENCE_S) == 78
        assert "has another node key; copy the file" in stranger.said()
    wait_until(lambda: nodes_of(site)["refused"] == 1, "it is counted", PATIENCE_S, site.describe)
    assert nodes_of(site)["refused_from"] == "127.0.0.1"
    wait_until(lambda: "refused" in told(site), "the hint", PATIENCE_S, site.describe)


def started_anew(folder: Path, site: SiteProcess, port: int, name: str) -> None:
    """What the node had in memory is gone: the head starts again from its files, and knows the node's name still."""
    process = site.process
    assert process is not None
    with node_process(port, site.run_dir / "node.key", folder / "node"):
        wait_until(lambda: process.poll() is not None, "the head's end", PATIENCE_S, site.describe)
        assert process.poll() == 1
    height = max(int(one["round"]) for one in events_of(site, "round.committed"))
    site.start()
    assert name in told(site)
    with node_process(port, site.run_dir / "node.key", folder / "node"):
        until_well(site)
        site.wait_height(height + 2, PATIENCE_S)
        # On a quiet machine the rounds are there before the next look at the alerts.
        wait_until(lambda: "node_missing" not in alerts(site), "its end", PATIENCE_S, site.describe)
