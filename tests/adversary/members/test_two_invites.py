"""A member with two invites shows one site another one: all votes to evict it count together (M7.8)."""

from pathlib import Path

import pytest

from dilocoxd.cli.run_dir.admission import keyring, now_ms, use_invite
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.wire.codec import encode_struct
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PATIENCE_S = 120.0
PHASE_S = 0.5
HOUR_MS = 3_600_000
QUARTER = 16
"""Of the entries that are looked at to find who may vote: in so many an elector is."""


def another_membership(a: SiteProcess, site: SiteProcess) -> str:
    """By an invite of its own for the site, which has not started; hex."""
    authority, newcomer = open_run_dir(a.run_dir), open_run_dir(site.run_dir)
    manifest, _ = authority.load()
    _, settings = newcomer.load()
    token = keyring(authority, manifest).invite(now_ms() + HOUR_MS, uses=1)
    proof = use_invite(token, manifest.sha256(), load(newcomer.identity(settings)).peer_id)
    return encode_struct(proof).hex()


def parts(a: SiteProcess) -> list[str]:
    """Contributors of the newest entries, one after the other."""
    return [one["peer"] for row in a.rounds()[-4 * QUARTER :] for one in row["contributors"]]


def serials(site: SiteProcess, peer: str, state: str) -> set[str]:
    """Of memberships of this peer, as the site lists them."""
    return {row["serial"] for row in site.get("/v1/members") or () if (row["peer_id"], row["state"]) == (peer, state)}


def test_who_shows_each_of_the_others_another_invite_is_evicted_all_the_same(tmp_path: Path) -> None:
    with founder(tmp_path, PATIENCE_S, phase_s=PHASE_S) as a:
        b, c, liar = (join_run(tmp_path, name, a) for name in ("b", "c", "liar"))
        with sites(b, c, liar):
            for site in (b, c):
                site.start_without_model(PHASE_S)
            liar.environment |= {"SHOWN_TO": str(c.says("peer_id")), "SECOND": another_membership(a, liar)}
            patched(liar, "members.lie_two_invites", phase_s=PHASE_S)
            open_run_dir(a.run_dir).authority_key.unlink()  # who has none votes
            honest, peer = (a, b, c), str(liar.says("peer_id"))
            everybody = [str(site.says("peer_id")) for site in (*honest, liar)]
            wait_until(
                lambda: min(map(parts(a).count, everybody)) >= 2 * QUARTER, "four electors", PATIENCE_S, a.describe
            )
            known = [serials(site, peer, "member") for site in honest]
            assert known[0] == known[1] != known[2] and all(len(one) == 1 for one in known), known
            for site in honest:
                assert "evict" in invoke("evict", peer, str(site.run_dir)).output
            for site in honest:
                wait_until(
                    lambda at=site: serials(at, peer, "evicted") == known[0] | known[2],
                    "both memberships to end", PATIENCE_S, site.describe,
                )  # fmt: skip
            assert_rounds_go_on(a, 2, PATIENCE_S)
            assert not any(serials(site, peer, "member") for site in honest)
