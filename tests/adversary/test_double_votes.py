"""A site votes for two entries in each attempt: all others name it, the chain leaves it out, rounds go on. R27."""

from pathlib import Path

import pytest

from dilocoxd.telemetry.alerts import kind_of
from tests.adversary.daemon import patched
from tests.adversary.judge import PATIENCE_S, assert_rounds_go_on, assert_same_bits
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import log_of
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PHASE_S = 0.7


def named(site: SiteProcess) -> list[str]:
    """Peer ids of those that the chain proves to have voted twice, as this site says."""
    return [one["peer_id"] for one in site.status().get("voted_twice", ())]


def alert(site: SiteProcess) -> str:
    """Text of the standing alert; empty if there is none."""
    return next((str(one["text"]) for one in site.status().get("alerts", ()) if one["code"] == "double_vote"), "")


def keep_out(a: SiteProcess, peer: str) -> None:
    """The remedy for a site that means harm."""
    assert "`dilocoxd evict SITE`" in kind_of("double_vote").remedy
    assert "is evicted" in invoke("evict", peer, str(a.run_dir)).output
    (row,) = [m for m in a.get("/v1/members") or () if m["peer_id"] == peer]
    assert row["state"] == "evicted"


def come_back_as_another(a: SiteProcess, site: SiteProcess) -> str:
    """The remedy for a run directory that was copied or restored; the new peer id, once it has contributed."""
    assert "then it needs a new identity (`dilocoxd identity new RUN_DIR`)" in kind_of("double_vote").remedy
    invoke("identity", "new", str(site.run_dir))
    site.start_without_model(PHASE_S)
    peer = str(wait_until(lambda: site.status().get("peer_id"), "a peer id", PATIENCE_S, site.describe))
    wait_until(
        lambda: any(one["peer"] == peer for row in a.rounds()[-3:] for one in row["contributors"]),
        "a contribution of the new peer", PATIENCE_S, site.describe,
    )  # fmt: skip
    return peer


@pytest.mark.remedy("alert:double_vote")
def test_who_votes_twice_is_named_by_all_and_left_out(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S, phase_s=PHASE_S) as a:
        b, liar = join_run(tmp_path, "b", a), join_run(tmp_path, "liar", a)
        with sites(b, liar):
            b.start_without_model(PHASE_S)
            patched(liar, "lie_votes", phase_s=PHASE_S)
            peer = str(wait_until(lambda: liar.status().get("peer_id"), "a peer id", PATIENCE_S, liar.describe))
            for site in (a, b):
                wait_until(lambda at=site: named(at) == [peer], "the liar in the chain", PATIENCE_S, site.describe)
                wait_until(lambda at=site: alert(at), "the alert", PATIENCE_S, site.describe)
                assert "voted for two entries" in alert(site)
            (until,) = {m["left_out_until"] for m in a.get("/v1/members") or () if m["peer_id"] == peer}
            assert_rounds_go_on(a, 3)
            assert_same_bits(a, b)
            assert liar.stop() == 0
            assert come_back_as_another(a, liar) != peer
            keep_out(a, peer)
            assert [site.stop() for site in (liar, b, a)] == [0, 0, 0]
    entries = [signed.entry for signed in log_of(a).entries()]
    (proof,) = [entry.round for entry in entries if entry.evidence]
    assert until == proof + 64 and [found.peer for found in entries[proof].evidence] == [peer]
    assert not any(one.peer == peer for entry in entries[proof:] for one in entry.contributions)
