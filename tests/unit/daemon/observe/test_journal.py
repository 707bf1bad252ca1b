"""The read model is bounded, joins neighbouring spans, and shows every documented field."""

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.daemon.observe import journal as state
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.ids import UnixTime


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
