"""The read model is bounded, joins neighbouring spans, and shows every documented field."""

from dataclasses import replace

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.daemon.observe import journal as state
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.ids import UnixTime
from dilocoxd.telemetry.sinks import Scalar, Sink
from tests.harness.synthetic.fake_view import FakeView


class Clock:
    """Time that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> UnixTime:
        return UnixTime(self.now)


def alert(code: str, text: str, remedy: str) -> StandingAlert:
    return StandingAlert(code=code, severity="warning", text=text, remedy=remedy, since=0.0)


def test_oldest_rounds_go_first() -> None:
    journal = Journal(Clock())
    for index in range(state.ROUNDS_KEPT + 5):
        journal.row(index)
    assert len(journal.rounds) == state.ROUNDS_KEPT
    assert min(journal.rounds) == 5


def test_neighbouring_spans_are_one() -> None:
    journal = Journal(Clock())
    journal.add_span("compute", 1.0, 2.0, 0)
    journal.add_span("compute", 2.01, 3.0, 0)
    journal.add_span("idle", 3.0, 3.5, 0)
    journal.add_span("compute", 3.5, 4.0, 0)
    journal.add_span("compute", 4.0, 5.0, 1)
    kinds = [(span.kind, span.start, span.end) for span in journal.spans]
    assert kinds == [("compute", 1.0, 3.0), ("idle", 3.0, 3.5), ("compute", 3.5, 4.0), ("compute", 4.0, 5.0)]


def test_repeated_alert_replaces_its_text_and_can_be_cleared() -> None:
    journal = Journal(Clock())
    journal.raise_alert(alert("disk", "full", "free space"))
    journal.raise_alert(alert("disk", "still full", "free space"))
    assert [alert.text for alert in journal.alerts.values()] == ["still full"]
    journal.clear_alert("disk")
    journal.clear_alert("disk")
    assert not journal.alerts


def test_alerts_and_failures_are_bounded() -> None:
    journal = Journal(Clock())
    for index in range(100):
        journal.raise_alert(alert(f"code{index}", "", ""))
        journal.add_failure(0, "again")
    assert len(journal.alerts) == state.ALERTS_KEPT
    assert len(journal.row(0).failures) == state.FAILURES_KEPT


def test_row_begins_when_it_is_first_asked_for() -> None:
    clock = Clock()
    journal = Journal(clock)
    row = journal.row(7)
    clock.now += 5.0
    assert (row.round, row.started_at) == (7, 1000.0)
    assert journal.row(7) is row


class Heard(Sink):
    """Keeps what it is offered."""

    def __init__(self) -> None:
        self.taken: list[Scalar] = []

    def offer(self, scalar: Scalar) -> None:
        self.taken.append(scalar)


def test_sinks_hear_how_training_goes_once_for_a_step() -> None:
    journal, sink, progress = Journal(Clock()), Heard(), FakeView().status().progress
    journal.sinks = [sink]
    journal.tell_figures(progress)
    assert not sink.taken, "no step yet"
    journal.add_inner_loss(7, 3.2)
    journal.tell_figures(replace(progress, mfu=None))
    found = {one.name: one.value for one in sink.taken if one.name.startswith("train/")}
    assert found.keys() >= {"train/gradient_norm", "train/learning_rate", "train/bubble", "train/data_s"}
    assert (found["train/tokens_per_s"], found["train/rank_memory_bytes"]) == (6826.7, 610_000_000.0)
    assert "train/mfu" not in found and {one.step for one in sink.taken} == {7}
    journal.tell_figures(progress)
    assert len(sink.taken) == len(found) + 1, "the loss besides, and nothing twice"
    journal.add_inner_loss(8, 3.1)
    journal.tell_figures(progress)
    assert (sink.taken[-1].step, "train/mfu" in {one.name for one in sink.taken}) == (8, True)
