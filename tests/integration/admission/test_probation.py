"""Real daemons in an open run: who enters weighs more with every round, and its vote does not count until it is through
(M11)."""

from pathlib import Path

import pytest

from dilocoxd.config.manifest import load_manifest
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trained.chain import read_chain
from dilocoxd.wire.entry import RAMP_WHOLE, Entry
from tests.adversary.judge import assert_rounds_go_on
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.integration.admission.test_admission import contributors_from

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PATIENCE_S = 180.0
ROUNDS = 12
STILL_S = 10.0
SLOW_S = 5.0
"""A phase of c until b is gone: so it needs a minute for its ROUNDS."""


def probation(site: SiteProcess) -> dict[str, int] | None:
    found: dict[str, int] | None = site.status().get("probation", {})
    return found


def is_member(site: SiteProcess) -> bool:
    """Whether it has its chain, and is through by it."""
    status = site.status()
    return status.get("state") == "training" and status["probation"] is None


def entries_of(site: SiteProcess) -> list[Entry]:
    """Of a stopped site's log."""
    run_dir = open_run_dir(site.run_dir)
    manifest = load_manifest(run_dir.run_toml)
    return [link.entry for link in read_chain(run_dir.log, manifest)]


def ramps_of(peer: str, entries: list[Entry]) -> list[int]:
    """Of all entries that name it, oldest first."""
    found = []
    for entry in entries:
        named = [contribution.peer for contribution in entry.contributions]
        if peer in named:
            found.append(entry.ramp_of(named.index(peer)))
    return found


def test_fresh_site_ramps_up_and_is_no_part_of_a_majority(tmp_path: Path) -> None:
    options = ["admission.mode=open", f"admission.probation_rounds={ROUNDS}", 'round.quorum="majority"']
    a = found_run(tmp_path, "a", *[part for option in options for part in ("--set", option)])
    with sites(a):
        a.start_without_model(0.5)
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a)
        with sites(b):
            b.start_without_model(0.5)
            wait_until(lambda: is_member(b), "b is through", PATIENCE_S, b.describe)
            c = join_run(tmp_path, "c", a)
            with sites(c):
                c.start_without_model(SLOW_S)  # or it would be through before b is gone, on a machine that stands still
                wait_until(lambda: (probation(c) or {}).get("rounds_done"), "a round with c", PATIENCE_S, c.describe)
                b.kill_tree()
                _assert_two_of_three_wait(a, c)
                assert c.stop() == 0
                for site in (b, c):
                    site.start_without_model(0.5)
                wait_until(lambda: is_member(c), "c is through", PATIENCE_S, c.describe)
                peers, first = [site.status()["peer_id"] for site in (b, c)], c.status()["height"]
                wait_until(
                    lambda: {*peers} <= set().union(*contributors_from(a, first)), "both", PATIENCE_S, c.describe
                )
                for site in (a, c):
                    site.stop()
    rising = [max(1, RAMP_WHOLE * (count + 1) // (ROUNDS + 1)) for count in range(ROUNDS)]
    entries = entries_of(a)
    for peer in peers:
        found = ramps_of(peer, entries)
        assert found[:ROUNDS] == rising and set(found[ROUNDS:]) == {RAMP_WHOLE}, peer
    assert entries_of(c)[: len(entries)] == entries[: len(entries_of(c))], "one chain"


def _assert_two_of_three_wait(a: SiteProcess, c: SiteProcess) -> None:
    """`a` and a site on probation are not the majority of `a` and `b`, and say so."""
    done = (probation(c) or {})["rounds_done"]
    assert done < ROUNDS, "it was through before b was gone"
    told = "1 of 2 recent contributors take part"
    wait_until(lambda: told in str(a.status().get("round", {}).get("waiting_for")), told, PATIENCE_S, a.describe)
    height = a.status()["height"]
    with pytest.raises(AssertionError):
        assert_rounds_go_on(a, 1, STILL_S)
    assert a.status()["height"] == height and probation(c) is not None
