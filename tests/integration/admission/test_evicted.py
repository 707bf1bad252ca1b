"""Two real daemons: one is evicted, knows it, adds nothing of its own, and is back with a fresh invite."""

from pathlib import Path
from typing import Any

import pytest

from dilocoxd.telemetry.alerts import kind_of
from tests.harness.running.run_directories import common_options, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.integration.admission.test_admission import PATIENCE_S, cli_text, committed, contributors_from

pytestmark = pytest.mark.processes


def alerts_of(status: dict[str, Any]) -> dict[str, str]:
    return {alert["code"]: alert["text"] for alert in status.get("alerts", ())}


def is_out(site: SiteProcess) -> bool:
    status = site.status()
    return status.get("state") == "paused" and "evicted" in alerts_of(status)


def is_back(site: SiteProcess) -> bool:
    status = site.status()
    return status.get("state") == "training" and not alerts_of(status).keys() & {"evicted", "fork_below_final"}


@pytest.mark.remedy("alert:evicted")
def test_evicted_site_halts_says_so_and_comes_back_with_a_fresh_invite(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a)
        with sites(b):
            b.start_without_model()
            ids = [wait_until(lambda s=s: s.status().get("peer_id"), s.name, PATIENCE_S, s.describe) for s in (a, b)]  # type: ignore[misc]
            wait_until(lambda: set(ids) in committed(a)[-3:], "a round of two", PATIENCE_S, a.describe)
            assert "is evicted" in cli_text("evict", ids[1], str(a.run_dir))
            wait_until(lambda: is_out(b), "b to know", PATIENCE_S, b.describe)
            told = "evicted from the run by its authorities (shown by "
            status, first = b.status(), b.state()["height"]  # earlier entries may be of whoever was not late
            assert told in alerts_of(status)["evicted"] and told in status["waiting_for"]
            assert "evicted" in cli_text("members", str(b.run_dir))

            at_a = a.status()["height"]
            wait_until(lambda: a.status()["height"] > at_a + 8, "a goes on alone", PATIENCE_S, a.describe)
            assert {ids[1]} not in contributors_from(b, first), "no entry of its own"
            b.stop()
            b.start_without_model()
            wait_until(lambda: is_out(b), "b to know after a restart", PATIENCE_S, b.describe)
            at_a = a.status()["height"]
            wait_until(lambda: a.status()["height"] > at_a + 8, "a goes on alone", PATIENCE_S, a.describe)
            assert {ids[1]} not in contributors_from(b, first) and "alone" not in alerts_of(b.status())
            b.stop()

            for words in ("Ask an authority for a new invite, stop the daemon", "`dilocoxd join LINK --dir RUN_DIR`"):
                assert words in kind_of("evicted").remedy, "the remedy no longer says so: follow what it says"
            fresh = cli_text("invite", str(a.run_dir)).split()[-1]
            cli_text("join", fresh, "--no-run", *common_options(b.run_dir, b.port))
            b.start_without_model()
            at = a.status()["height"]
            wait_until(lambda: set(ids) in committed(a)[at:], "a round of two again", PATIENCE_S, a.describe)
            wait_until(lambda: is_back(b), "b to train", PATIENCE_S, b.describe)
