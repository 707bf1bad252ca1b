"""Nothing leaves out what points against the others: held-out text tells whose contributions do harm. Real sites."""

import contextlib
from pathlib import Path

import pytest

from dilocoxd.telemetry.alerts import kind_of
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_same_bits
from tests.adversary.test_poison import alert
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.training import PATIENCE_S, founder_options, site_options, write_corpus
from tests.harness.running.warm import STEP_VARIABLE
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

CODE = "harmful_contribution"
RUN = ("--set", "aggregation.drop_contrary=false", "--set", "data.validation_sequences=16")
SITE = ("--set", "workers.without_one_every=1")
STEP_S = "0.12"
"""What is learnt in a round must be more than held-out text of 16 sequences is uncertain by."""


@pytest.mark.remedy("alert:harmful_contribution")
def test_who_undoes_what_others_learn_is_named_by_held_out_text_and_can_be_kept_out(tmp_path: Path) -> None:
    """Two sites are enough: each looks at its own contributions too, and those help."""
    write_corpus(tmp_path)
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=16), *RUN, *SITE)
    a.environment[STEP_VARIABLE] = STEP_S
    with contextlib.ExitStack() as stack:
        stack.enter_context(sites(a))
        a.start()
        a.wait_height(1, PATIENCE_S)
        liar = join_run(tmp_path, "liar", a, *site_options(tmp_path))
        liar.environment[STEP_VARIABLE] = STEP_S
        stack.enter_context(sites(liar))
        patched(liar, "lie_flipped", phase_s=None)
        liar_id = str(wait_until(lambda: liar.status().get("peer_id"), "the liar's id", PATIENCE_S, liar.describe))
        text = wait_until(lambda: alert(a, CODE), "who does harm", 2 * PATIENCE_S, a.describe)
        assert liar_id in text or liar_id[-6:] in text, text
        assert a.state()["peer_id"] not in text
        assert a.status()["unwatched"] == ""
        assert_same_bits(a, liar)
        assert "`dilocoxd evict` it" in kind_of(CODE).remedy, "the remedy no longer says so: follow what it says"
        assert "is evicted" in invoke("evict", liar_id, str(a.run_dir)).output
        wait_until(lambda: "evicted" in str(liar.status().get("alerts")), "the liar to know", PATIENCE_S, liar.describe)
