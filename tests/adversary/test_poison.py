"""One site of four poisons the mean: rounds go on, the honest ones hold the same bits, learn, and name it. C9, X2."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.telemetry.alerts import kind_of
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import (
    PATIENCE_S,
    founder_options,
    site_options,
    wait_joint_round,
    write_corpus,
)
from tests.harness.running.warm import STEP_VARIABLE
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

STEP_S = "0.04"
"""More steps than other tests have: the longer a phase, the more honest sites agree."""
ROUNDS_TO_NAME = 3
"""Rounds with the liar's contribution, until its name stands in the status of an honest site."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Corpus and token cache of all tests here: tokenised once."""
    folder = tmp_path_factory.mktemp("shared")
    write_corpus(folder)
    yield folder


def alert(site: SiteProcess, code: str) -> str:
    """Text of a standing alert of this site; empty if it does not stand."""
    return next((str(one["text"]) for one in site.status().get("alerts", ()) if one["code"] == code), "")


def rounds_of(site: SiteProcess, peer: str, *, with_at_least: int) -> list[int]:
    """Rounds in which this peer and so many in all contributed."""
    return [
        row["round"]
        for row in site.rounds()
        if len(row["contributors"]) >= with_at_least and any(one["peer"] == peer for one in row["contributors"])
    ]


def rounds_until_named(site: SiteProcess, peer: str, code: str, *, with_at_least: int) -> int:
    """How many rounds in which this peer and so many in all contributed the site had when it first named the peer."""
    alerts = [event for event in events_of(site, "alert.raised") if event["code"] == code]
    named_at = next(event["time"] for event in alerts if peer in event["text"] or peer[-6:] in event["text"])
    committed = {row["round"] for row in site.rounds() if row["committed_at"] <= named_at}
    return sum(number in committed for number in rounds_of(site, peer, with_at_least=with_at_least))


def keep_out(honest: list[SiteProcess], liar: SiteProcess) -> None:
    """It goes on after it was asked, now with steps of a huge size; then it is evicted."""
    for code, words in (
        ("contrary_contribution", "`dilocoxd evict` it"),
        ("outsized_contribution", "keep that site out"),
    ):
        assert words in kind_of(code).remedy, "the remedy no longer says so: follow what it says"
    a, liar_id = honest[0], str(liar.state()["peer_id"])
    assert liar.stop() == 0
    patched(liar, "lie_spoils", phase_s=None)

    def told() -> str:
        texts = [alert(site, "outsized_contribution") for site in honest]
        return next((text for text in texts if liar_id[-6:] in text), "")

    name, _, _ = wait_until(told, "its size to be told", PATIENCE_S, a.describe).partition(":")
    assert "is evicted" in invoke("evict", name, str(a.run_dir)).output
    wait_until(lambda: "evicted" in str(liar.status().get("alerts")), "the liar to know", PATIENCE_S, liar.describe)
    height = a.state()["height"]
    assert_rounds_go_on(a, 3)
    assert not [one for one in rounds_of(a, liar_id, with_at_least=1) if one > height], "nothing of it comes in"


@pytest.mark.remedy("alert:outsized_contribution", "alert:contrary_contribution")
@pytest.mark.parametrize("patch", ["lie_huge", "lie_flipped", "lie_tokens"])
def test_liar_is_held_back_and_named(tmp_path: Path, shared: Path, patch: str) -> None:
    code = "contrary_contribution"  # a size with the wrong sign as well: it is left out, not scaled
    a = found_run(tmp_path, "a", *founder_options(shared, inner_steps=50))
    a.environment[STEP_VARIABLE] = STEP_S
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        honest = [a, *(join_run(tmp_path, name, a, *site_options(shared)) for name in "bc")]
        liar = join_run(tmp_path, "liar", a, *site_options(shared))
        with sites(*honest[1:], liar):
            for site in (*honest[1:], liar):
                site.environment[STEP_VARIABLE] = STEP_S
            for site in honest[1:]:
                site.start()
            wait_joint_round(honest)
            patched(liar, patch, phase_s=None)
            liar_id = wait_until(lambda: liar.status().get("peer_id"), "the liar's id", PATIENCE_S, liar.describe)
            short = liar_id[-6:]
            wait_until(lambda: rounds_of(a, liar_id, with_at_least=3), "a round with the liar", PATIENCE_S, a.describe)
            named = wait_until(  # rounds go on meanwhile, and behind it
                lambda: [site for site in honest if liar_id in alert(site, code) or short in alert(site, code)],
                f"{code} naming the liar",
                PATIENCE_S,
                a.describe,
            )
            told = rounds_until_named(named[0], liar_id, code, with_at_least=3)
            assert told <= ROUNDS_TO_NAME + 2, "the watch looks a moment after the entry"
            assert_same_bits(*honest)
            assert_rounds_go_on(a, 3)
            curves = [(site.get("/v1/losses") or {})["validation"] for site in honest]
            assert all(curves)
            values = [loss for curve in curves for _, _, loss in curve]
            assert None not in values, "a loss that is no number"
            assert max(values) < 1.5 * math.log(512), "nobody knows less than at the start"
            claims = {
                one["peer"]: one["tokens"] / one["inner_steps"] for row in a.rounds() for one in row["contributors"]
            }
            assert (claims[liar_id] > 8 * min(claims.values())) is (patch == "lie_tokens"), claims
            others = {site.state()["peer_id"] for site in honest}
            if patch == "lie_flipped":
                keep_out(honest, liar)
            assert not any(peer in alert(site, "outsized_contribution") for site in honest for peer in others)
