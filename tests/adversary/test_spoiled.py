"""A run that clips nothing, and a site whose contribution leaves no finite loss: nobody dies of it, the operator is
told which entry it was, and the state before it goes on as a run of its own. ADR 31."""

from pathlib import Path
from typing import Any

import pytest

from tests.adversary.daemon import patched
from tests.adversary.judge import assert_same_bits
from tests.adversary.test_poison import alert
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import PATIENCE_S, founder_options, log_of, site_options

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

UNBOUNDED = ("--set", "aggregation.norm_clip=false", "--set", "aggregation.drop_contrary=false")


def trainer(site: SiteProcess) -> dict[str, Any]:
    found: dict[str, Any] = site.status()["workers"]["trainer"]
    return found


def test_honest_sites_wait_and_say_which_entry_it_was(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path), *UNBOUNDED)
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        liar = join_run(tmp_path, "liar", a, *site_options(tmp_path))
        honest = [a, b]
        with sites(b, liar):
            b.start()
            b.wait_height(a.status()["height"] + 1, PATIENCE_S)
            patched(liar, "lie_spoils", phase_s=None)
            liar_id = wait_until(lambda: liar.status().get("peer_id"), "the liar's id", PATIENCE_S, liar.describe)
            for site in honest:
                wait_until(lambda at=site: alert(at, "state_spoiled"), "the alert", PATIENCE_S, liar.describe)
            wait_until(
                lambda: all("a newer shared state" in site.status()["waiting_for"] for site in honest),
                "all to wait for a newer state",
                PATIENCE_S,
                a.describe,
            )
            assert_same_bits(*honest)
            told = alert(a, "state_spoiled")
            assert "made the loss not finite" in told and not alert(a, "loss_not_finite")
            assert [trainer(site)["restarts"] for site in honest] == [0, 0], "nobody died of it"
            assert [site.stop() for site in (liar, b, a)] == [0, 0, 0]
    entries = [signed.entry for signed in log_of(a).entries()]
    spoiled = next(entry.round for entry in entries if any(c.peer == liar_id for c in entry.contributions))
    assert all(entry.round <= spoiled + 2 for entry in entries), "what was on its way, and then nothing"
    again = found_run(tmp_path, "again", *founder_options(tmp_path), "--from", f"{a.run_dir}@{spoiled}")
    with sites(again):
        again.start()
        again.wait_height(1, PATIENCE_S)
        assert not alert(again, "state_spoiled"), "the state before it is sound"
        assert again.stop() == 0
