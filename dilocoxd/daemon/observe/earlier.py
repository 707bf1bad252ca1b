"""What the event log tells of earlier lives of this daemon: losses, bytes, failures, alerts.

Reads events.jsonl.1 and events.jsonl (telemetry/events.py keeps two files of bounded size), so that the oldest lives of
a long run may be missing; the chain itself is in the log and is complete. A line that cannot be read is left out.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dilocoxd.answers.alerts import PastAlert
from dilocoxd.daemon.observe.journal import EVENTS_KEPT, FAILURES_KEPT, PAST_ALERTS_KEPT, Point
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.telemetry.catalogue import (
    AlertCleared,
    AlertRaised,
    DaemonStarted,
    PhaseClosed,
    RoundAbandoned,
    RoundCommitted,
    ValidationMeasured,
)


@dataclass(frozen=True, slots=True)
class ToldRound:
    """What a round.committed event says besides what is in the entry."""

    entry_hash: str
    attempts: int
    bytes_sent: int
    bytes_received: int
    exchange_s: float
    committed_at: float


@dataclass(slots=True)
class EarlierLives:
    """Everything that is worth keeping of the events before this start."""

    first_at: float | None = None
    """Time of the oldest event; None: there is none."""
    inner: list[Point] = field(default_factory=list)
    """Mean loss of each phase, at its last global step."""
    phases: dict[int, float] = field(default_factory=dict)
    """Mean loss of each phase by its number."""
    validation: dict[int, Point] = field(default_factory=dict)
    rounds: dict[int, ToldRound] = field(default_factory=dict)
    failures: dict[int, tuple[str, ...]] = field(default_factory=dict)
    tokens: int = 0
    inner_steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    attempts_failed: int = 0
    past_alerts: deque[PastAlert] = field(default_factory=lambda: deque(maxlen=PAST_ALERTS_KEPT))
    records: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    _standing: dict[str, PastAlert] = field(default_factory=dict)

    def _phase(self, record: dict[str, Any]) -> None:
        self.tokens += int(record["tokens"])
        self.inner_steps += int(record["inner_steps"])
        # Versions before 0.2 did not say the step: then what was counted stands for it.
        step = int(record.get("global_step", self.inner_steps))
        if record["mean_loss"] is not None:
            self.inner.append((float(record["time"]), step, float(record["mean_loss"])))
            self.phases[int(record["phase"])] = float(record["mean_loss"])

    def _validation(self, record: dict[str, Any]) -> None:
        number = int(record["round"])
        self.validation[number] = (float(record["time"]), number, float(record["validation_loss"]))

    def _round(self, record: dict[str, Any]) -> None:
        sent, received = int(record["bytes_sent"]), int(record["bytes_received"])
        self.bytes_sent += sent
        self.bytes_received += received
        self.rounds[int(record["round"])] = ToldRound(
            entry_hash=str(record["entry_hash"]),
            attempts=int(record["attempt"]) + 1,
            bytes_sent=sent,
            bytes_received=received,
            exchange_s=float(record["exchange_s"]),
            committed_at=float(record["time"]),
        )

    def _failure(self, record: dict[str, Any]) -> None:
        self.attempts_failed += 1
        number = int(record["round"])
        before = self.failures.get(number, ())
        if len(before) < FAILURES_KEPT:
            self.failures[number] = (*before, f"attempt {record['attempt']}: {record['reason']}")

    def _raised(self, record: dict[str, Any]) -> None:
        code = str(record["code"])
        before = self._standing.get(code)
        since = before.since if before is not None else float(record["time"])
        self._standing[code] = PastAlert(
            code=code, severity=kind_of(code).severity, text=str(record["text"]), since=since, cleared_at=None
        )

    def _cleared(self, record: dict[str, Any]) -> None:
        self._over([self._standing.pop(str(record["code"]), None)], float(record["time"]))

    def _started(self, record: dict[str, Any]) -> None:
        self.end()

    def end(self) -> None:
        """A life ended: what stood then was never cleared."""
        self._over(list(self._standing.values()), None)
        self._standing.clear()

    def _over(self, alerts: Iterable[PastAlert | None], cleared_at: float | None) -> None:
        for one in alerts:
            if one is not None:
                self.past_alerts.append(
                    PastAlert(
                        code=one.code, severity=one.severity, text=one.text, since=one.since, cleared_at=cleared_at
                    )
                )


ADDERS: Final = {
    PhaseClosed.name: EarlierLives._phase,
    ValidationMeasured.name: EarlierLives._validation,
    RoundCommitted.name: EarlierLives._round,
    RoundAbandoned.name: EarlierLives._failure,
    AlertRaised.name: EarlierLives._raised,
    AlertCleared.name: EarlierLives._cleared,
    DaemonStarted.name: EarlierLives._started,
}


def _add(told: EarlierLives, record: dict[str, Any]) -> None:
    """One more event, in the order of the file."""
    if told.first_at is None:
        told.first_at = float(record["time"])
    told.records.append(record)
    adder = ADDERS.get(record["event"])
    if adder is not None:
        adder(told, record)


def read_earlier(path: Path, before_unix_s: float) -> EarlierLives:
    """What the files say of events before this time. Reads up to 32 MiB: call it in a thread."""
    told = EarlierLives()
    for record in _records(path):
        try:
            if float(record["time"]) < before_unix_s:
                _add(told, record)
        except (KeyError, TypeError, ValueError):
            continue  # of a version that wrote other fields, or damaged: nothing is worth a daemon that does not start
    told.end()
    return told


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for file in (path.with_name(path.name + ".1"), path):
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    record = _record(line)
                    if record is not None:
                        yield record
        except OSError:
            continue


def _record(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
