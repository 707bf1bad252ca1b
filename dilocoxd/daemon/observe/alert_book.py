"""Which alerts stand, for people: whoever raises or clears one tells the event log, and the journal follows the log."""

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.telemetry.alerts import CLEARED_BY, kind_of, raised
from dilocoxd.telemetry.catalogue import AlertCleared, AlertRaised
from dilocoxd.telemetry.events import EventLog


class AlertBook:
    """Joins the event log with the journal: every `AlertRaised`, whoever emits it, stands until it is cleared."""

    def __init__(self, journal: Journal, events: EventLog) -> None:
        self._journal = journal
        self._events = events
        events.listen(self._on_event)

    def alert(self, code: str, text: str) -> None:
        """Tell the operator; `code` is one of telemetry/alerts.py, which has the remedy."""
        self._events.emit(raised(code, text))

    def clear(self, code: str) -> None:
        """The reason of an alert is gone; nothing if it does not stand."""
        if self.stands(code):
            self._events.emit(AlertCleared(code=code))

    def stands(self, code: str) -> bool:
        """Raised and not cleared."""
        return code in self._journal.alerts

    def _on_event(self, record: dict[str, object]) -> None:
        name = record["event"]
        if name == AlertRaised.name:
            self._journal.raise_alert(_standing(record))
        elif name == AlertCleared.name:
            self._journal.clear_alert(str(record["code"]))
        for code in CLEARED_BY.get(str(name), ()):
            self.clear(code)


def _standing(record: dict[str, object]) -> StandingAlert:
    code = str(record["code"])
    return StandingAlert(
        code=code,
        severity=kind_of(code).severity,
        text=str(record["text"]),
        remedy=str(record["remedy"]),
        since=0.0,
    )
