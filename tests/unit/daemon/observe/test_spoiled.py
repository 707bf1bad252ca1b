"""What the operator and the other sites are told of a shared state from which nothing can be trained."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.daemon.observe.status import site_wait
from dilocoxd.daemon.peers.heartbeat import Heartbeat
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.ids import RoundIndex
from dilocoxd.machines.phase.outputs import TellSpoiled, TellTrains
from dilocoxd.machines.phase.soundness import Spoiled
from dilocoxd.telemetry.alerts import kind_of
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView
from tests.unit.daemon.observe.test_waiting import site as site_at
from tests.unit.telemetry.test_loss_watch import Told


def test_the_entry_is_named_as_the_cause_and_who_another_alert_names() -> None:
    site = Told()
    site.journal.raise_alert(
        StandingAlert(code="outsized_contribution", severity="warning", text="D: 1e6 norms", remedy="ask", since=0.0)
    )
    site.history.note(TellSpoiled(Spoiled(RoundIndex(18), RoundIndex(17))))
    standing = site.journal.alerts["state_spoiled"]
    assert standing.text.startswith("entry 17 made the loss not finite: the first inner steps from state 18 have none;")
    assert "RUN_DIR@17" in standing.text and standing.text.endswith("(D: 1e6 norms)")
    assert "inner.lr only if it happens again" in kind_of("state_spoiled").remedy
    site.history.note(TellTrains(RoundIndex(19)))
    assert not site.book.stands("state_spoiled")


def test_what_is_not_known_is_not_said() -> None:
    site = Told()
    site.history.note(TellSpoiled(Spoiled(RoundIndex(18), None)))
    assert "entry 17 or one before it" in site.journal.alerts["state_spoiled"].text
    site.history.note(TellSpoiled(Spoiled(RoundIndex(18), RoundIndex(15))))
    assert "one of the entries 15 to 17" in site.journal.alerts["state_spoiled"].text


def test_what_it_waits_for_says_at_how_many_others_it_is_so() -> None:
    """At all of them the entry is the cause; at none, this site's GPU."""
    live, dead = FakeView(14).peers()
    halted, trains = changed(live, state="halted"), changed(live, state="training")
    waits = replace(site_at("a newer shared state (entry 17)", ""), spoiled_by=(RoundIndex(17), RoundIndex(18)))
    peers = [halted, halted, trains, changed(dead, is_live=False, state="halted"), changed(live, state="joining")]
    assert site_wait(waits, peers) == "a newer shared state (entry 17); 2 of 3 other sites say so too"
    assert site_wait(waits, [trains]) == "a newer shared state (entry 17); 0 of 1 other site say so too"
    assert site_wait(waits) == "a newer shared state (entry 17)"


def test_others_do_not_wait_for_a_site_that_has_nothing_to_train_from() -> None:
    chain = SimpleNamespace(head=b"", height=18, weight=0, state_digest=b"")
    status = SimpleNamespace(step_seconds=0.5, is_spoiled=False)
    ledger: Any = SimpleNamespace(chain=chain, own_rounds=[])
    site: Any = SimpleNamespace(status=lambda: status)
    lifecycle = Lifecycle()
    lifecycle.enter("training")
    heartbeat = Heartbeat(lifecycle, ledger, site, lambda: 8)
    assert heartbeat.describe().state == "training"
    status.is_spoiled = True
    assert heartbeat.describe().state == "halted"
    lifecycle.enter("leaving")
    assert heartbeat.describe().state == "leaving"
