"""A donor that trickles, gives wrong chunks or makes up a snapshot: a newcomer leaves it for others, and says whom it
left (S3, L8, L9, L13, L16, TRUST H4)."""

from pathlib import Path

import pytest

from dilocoxd.machines.recovery.interface.limits import RecoveryLimits
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits
from tests.adversary.patches.donors.lie_chunks import SWITCH
from tests.harness.running.run_directories import OPEN, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
PHASE_S = 0.5
NEVER_S = 1e6
"""Of a phase: a site that only looks on."""


def left(site: SiteProcess, donor: str) -> str:
    """Why it left this donor for others, once it has caught up all the same."""
    if not events_of(site, "recovery.finished"):
        return ""
    return next((str(event["reason"]) for event in events_of(site, "source.late") if event["peer"] == donor), "")


def test_donor_that_trickles_is_left_for_others_and_named(tmp_path: Path) -> None:
    site = found_run(tmp_path, "a", *OPEN)
    with sites(site):
        patched(site, "with_snapshots", phase_s=PHASE_S)
        site.wait_height(1, PATIENCE_S)
        donor = join_run(tmp_path, "donor", site)
        with sites(donor):
            patched(donor, "with_snapshots", "donors.lie_trickle", phase_s=PHASE_S)
            for one in (site, donor):
                one.wait_height(RecoveryLimits().replay_max + 5, PATIENCE_S)
            newcomer, hollow = join_run(tmp_path, "n", donor), join_run(tmp_path, "h", donor)
            with sites(newcomer, hollow):
                patched(newcomer, "with_snapshots", phase_s=PHASE_S)
                patched(hollow, "with_snapshots", "catching_up.hole_patience", phase_s=PHASE_S)
                name = donor.state()["peer_id"]
                why = {
                    one.name: wait_until(lambda at=one: left(at, name), "it to be left", PATIENCE_S, one.describe)
                    for one in (newcomer, hollow)
                }
                all_of_its_patience = "no answer about its list of snapshots"
                assert all_of_its_patience not in why["n"] and all_of_its_patience in why["h"], why
                assert_rounds_go_on(newcomer, timeout_s=PATIENCE_S)
                assert_same_bits(site, newcomer, timeout_s=PATIENCE_S)


def blamed(site: SiteProcess, donor: str) -> str:
    """For which wrong bytes of snapshots, if any."""
    rejected = [event for event in events_of(site, "input.rejected") if event["peer"] == donor]
    return "\n".join(str(event["detail"]) for event in rejected if event["code"] == "bad_hash")


def is_refused(site: SiteProcess) -> bool:
    """It has begun anew although nothing has changed."""
    return len(events_of(site, "recovery.started")) > 1


def test_donor_of_wrong_chunks_and_made_up_snapshots_is_named_and_left(tmp_path: Path) -> None:
    """It alone has the newest snapshots, so that everybody who comes by it asks it first; others have the entries."""
    site, switch = found_run(tmp_path, "a", *OPEN), tmp_path / SWITCH
    with sites(site):
        site.start_without_model(PHASE_S)
        site.wait_height(1, PATIENCE_S)
        liar = join_run(tmp_path, "liar", site)
        with sites(liar):
            patched(liar, "with_snapshots", "donors.lie_snapshots", "donors.lie_chunks", phase_s=NEVER_S)
            liar.wait_height(RecoveryLimits().replay_max + 5, PATIENCE_S)
            name = str(liar.state()["peer_id"])
            hollow, first, second = (join_run(tmp_path, one, liar) for one in ("h", "n1", "n2"))
            switch.touch()
            with sites(hollow):
                patched(hollow, "with_snapshots", "catching_up.hole_donors", phase_s=NEVER_S)
                wait_until(lambda: is_refused(hollow), "it to fail", PATIENCE_S, hollow.describe)
                assert not events_of(hollow, "recovery.finished") and not blamed(hollow, name)
            for newcomer, what in ((first, "chunk 0 of snapshot/"), (second, "is not the state that entry")):
                with sites(newcomer):
                    patched(newcomer, "with_snapshots", phase_s=NEVER_S)
                    wait_until(lambda at=newcomer: blamed(at, name), "it to be named", PATIENCE_S, newcomer.describe)
                    assert what in blamed(newcomer, name)
                    assert_same_bits(site, newcomer, timeout_s=PATIENCE_S)
                switch.unlink(missing_ok=True)
