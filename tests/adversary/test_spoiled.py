"""A run that clips nothing, and a site whose contribution leaves no finite loss: nobody dies of it, and the others take
the entry back. Where that happens again and again the operator is told which entry it was, and the state before it goes
on as a run of its own. R29, ADR 31."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.machines.peers.reverts import IN_ROUNDS_MAX
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.wire.entry import entry_hash
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_same_bits
from tests.adversary.test_poison import alert
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import PATIENCE_S, founder_options, log_of, site_options, wait_joint_round
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

CLIPPED = ("--set", "aggregation.norm_clip=true")
UNBOUNDED = ("--set", "aggregation.norm_clip=false", "--set", "aggregation.drop_contrary=false")


def trainer(site: SiteProcess) -> dict[str, Any]:
    found: dict[str, Any] = site.state()["workers"]["trainer"]
    return found


def taken_back(site: SiteProcess) -> list[tuple[int, tuple[str, ...]]]:
    """(round, sites in it) of each entry that left the site's chain because it spoiled the model."""
    return [(event["round"], tuple(event["sites"])) for event in events_of(site, "entry.taken_back")]


def told_of(members: list[SiteProcess]) -> str:
    """For a wait that comes to nothing."""
    return "\n".join(f"{member.describe()} {taken_back(member)}" for member in members)


def test_entry_that_spoiled_the_model_is_taken_back(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *founder_options(tmp_path), *UNBOUNDED)
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        liar = join_run(tmp_path, "liar", a, *site_options(tmp_path))
        honest = [a, b]
        with sites(b, liar):
            b.start()
            wait_joint_round(honest)
            patched(liar, "lie_spoils_once", phase_s=None)
            liar_id = wait_until(lambda: liar.status().get("peer_id"), "the liar's id", PATIENCE_S, liar.describe)
            for site in honest:
                wait_until(lambda at=site: taken_back(at), "the entry to be left", PATIENCE_S, lambda: told_of(honest))
            number, named = taken_back(a)[0]
            assert liar_id in named and number == taken_back(b)[0][0]
            for site in honest:
                site.wait_height(number + 3, PATIENCE_S)
            wait_until(lambda: not alert(a, "state_spoiled"), "the alert to go", PATIENCE_S, a.describe)
            assert_same_bits(a, b, liar, timeout_s=PATIENCE_S)
            assert [trainer(site)["restarts"] for site in honest] == [0, 0], "nobody died of it"
            assert [site.stop() for site in (liar, b, a)] == [0, 0, 0]
    logs = [{signed.entry.round: entry_hash(signed.entry) for signed in log_of(site).entries()} for site in honest]
    left = {event["entry"] for site in honest for event in events_of(site, "entry.taken_back")}
    assert left and not any(digest.hex()[:16] in left for log in logs for digest in log.values())


@pytest.mark.remedy("alert:state_spoiled")
def test_who_spoils_again_and_again_ends_with_the_operator(tmp_path: Path) -> None:
    """Three entries are taken back, then all wait, and are told which entry it was: the state before it is sound."""
    a = found_run(tmp_path, "a", *founder_options(tmp_path), *UNBOUNDED)
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        liar = join_run(tmp_path, "liar", a, *site_options(tmp_path))
        honest = [a, b]
        with sites(b, liar):
            b.start()
            wait_joint_round(honest)
            patched(liar, "lie_spoils", phase_s=None)
            liar_id = wait_until(lambda: liar.status().get("peer_id"), "the liar's id", PATIENCE_S, liar.describe)
            for site in honest:
                wait_until(
                    lambda at=site: len(taken_back(at)) == IN_ROUNDS_MAX and alert(at, "state_spoiled"),
                    "three entries to be left, and a fourth to stay",
                    2 * PATIENCE_S,
                    lambda: told_of(honest),
                )
            wait_until(
                lambda: all("a newer shared state" in site.state()["waiting_for"] for site in honest),
                "all to wait for a newer state",
                PATIENCE_S,
                a.describe,
            )
            assert_same_bits(*honest)
            told = alert(a, "state_spoiled")
            assert "made the loss not finite" in told
            # A look between the loss and what is found of it raises the alert of the loss; the next look ends it.
            wait_until(lambda: not alert(a, "loss_not_finite"), "one alert for one cause", PATIENCE_S, a.describe)
            assert [trainer(site)["restarts"] for site in honest] == [0, 0], "nobody died of it"
            for words in ("(`dilocoxd evict SITE`)", "`dilocoxd start --from RUN_DIR@ROUND`", "norm_clip on"):
                assert words in kind_of("state_spoiled").remedy, "the remedy no longer says so: follow what it says"
            assert "is evicted" in invoke("evict", liar_id, str(a.run_dir)).output
            assert [site.stop() for site in (liar, b, a)] == [0, 0, 0]
    entries = [signed.entry for signed in log_of(a).entries()]
    spoiled = next(entry.round for entry in entries if any(c.peer == liar_id for c in entry.contributions))
    behind = [entry for entry in entries if entry.round > spoiled]
    given = Counter(contribution.peer for entry in behind for contribution in entry.contributions)
    # What was in flight and what was under way; on a busy machine each has an entry of its own.
    assert all(count <= 2 for count in given.values()), f"what was on its way, and then nothing: {given}"
    again = found_run(tmp_path, "again", *founder_options(tmp_path), "--from", f"{a.run_dir}@{spoiled}", *CLIPPED)
    with sites(again):
        again.start()
        again.wait_height(1, PATIENCE_S)
        assert not alert(again, "state_spoiled"), "the state before it is sound"
        assert again.stop() == 0
