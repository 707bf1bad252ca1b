"""What the daemon remembers for whoever asks: rounds, losses, timeline, alerts, totals (docs/internals.md section 6).

Drivers write here, the HTTP floor reads. Everything is bounded; nothing here decides anything.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dilocoxd.daemon.others_timeline import OtherSpan, OthersTimeline
from dilocoxd.ids import UnixTime
from dilocoxd.telemetry.sinks import Scalar, Sink
from dilocoxd.wire.entry import Contribution

ROUNDS_KEPT: Final = 10_000
LOSSES_KEPT: Final = 20_000
"""Newest losses as they were measured; older ones are kept as means, so that a curve always begins at the start."""
SPANS_KEPT: Final = 10_000
FAILURES_KEPT: Final = 20
ALERTS_KEPT: Final = 32
PHASES_KEPT: Final = 2000

Point = tuple[float, int, float]

TIME_PARTS: Final = ("gather_s", "exchange_s", "vote_s", "persist_s", "apply_s", "form_s", "reduce_s")


@dataclass(slots=True)
class RoundRow:
    """One round as this site saw it; times since the unix epoch in seconds, 0 = not yet."""

    round: int
    attempts: int = 0
    coordinator: str = ""
    contributors: tuple[Contribution, ...] = ()
    is_contributor: bool = False
    entry_hash: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0
    next_lowrank_r: int = 0
    next_inner_steps: int = 0
    """r and H that hold after this round."""
    trainer_idle_s: float = 0.0
    started_at: float = 0.0
    committed_at: float = 0.0
    applied_at: float = 0.0
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIME_PARTS, 0.0))
    failures: list[str] = field(default_factory=list)

    def add_time(self, part: str, seconds: float) -> None:
        """Several attempts and segments add up."""
        self.times[part] += seconds

    def add_failure(self, reason: str) -> None:
        """Keep the first reasons; later ones of the same round repeat them."""
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(reason)

    def as_json(self) -> dict[str, Any]:
        """The object of GET /v1/rounds."""
        return {
            "round": self.round,
            "attempts": self.attempts,
            "coordinator": self.coordinator,
            "contributors": [contributor_json(contribution) for contribution in self.contributors],
            "is_contributor": self.is_contributor,
            "entry_hash": self.entry_hash,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "next_lowrank_r": self.next_lowrank_r,
            "next_inner_steps": self.next_inner_steps,
            "trainer_idle_s": self.trainer_idle_s,
            "started_at": self.started_at,
            "committed_at": self.committed_at,
            "applied_at": self.applied_at,
            "times": dict(self.times),
            "failures": list(self.failures),
        }


def contributor_json(contribution: Contribution) -> dict[str, Any]:
    """One contributor in GET /v1/rounds and /v1/log."""
    return {
        "peer": contribution.peer,
        "phase": contribution.phase,
        "tokens": contribution.tokens,
        "inner_steps": contribution.inner_steps,
        "base_round": contribution.base_round,
    }


@dataclass(frozen=True, slots=True)
class Alert:
    """Something the operator should know, with what can be done about it."""

    code: str
    text: str
    remedy: str
    since: float = 0.0


class Curve:
    """Points (unix seconds, number, loss): the newest as they are, all older ones as means of ever longer stretches."""

    def __init__(self, kept: int = LOSSES_KEPT) -> None:
        self._kept = kept
        self._new: deque[Point] = deque()
        self._old: list[Point] = []
        self._stretch = 2
        """Points that one old point stands for."""
        self._open: list[Point] = []

    def __len__(self) -> int:
        return len(self._old) + len(self._open) + len(self._new)

    @property
    def newest(self) -> Point | None:
        """The last point added."""
        return self._new[-1] if self._new else None

    def add(self, point: Point) -> None:
        """Add the newest point."""
        self._new.append(point)
        if len(self._new) <= self._kept:
            return
        self._open.append(self._new.popleft())
        if len(self._open) < self._stretch:
            return
        self._old.append(mean_point(self._open))
        self._open.clear()
        if len(self._old) >= self._kept // 2:
            self._old = [mean_point(self._old[i : i + 2]) for i in range(0, len(self._old), 2)]
            self._stretch *= 2

    def points(self) -> list[Point]:
        """All of it, ascending."""
        return [*self._old, *self._open, *self._new]


def mean_point(points: list[Point]) -> Point:
    """Time and number of the last one, mean loss."""
    return (points[-1][0], points[-1][1], sum(point[2] for point in points) / len(points))


@dataclass(slots=True)
class Totals:
    """Counters since the daemon started."""

    tokens: int = 0
    inner_steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    idle_s: float = 0.0
    train_s: float = 0.0
    attempts_failed: int = 0


@dataclass(slots=True)
class PhaseProgress:
    """Where the trainers are."""

    phase: int = 0
    inner_step: int = 0
    inner_steps: int = 0
    global_step: int = 0
    base_round: int = 0
    step_seconds: float = 0.0


class Journal:
    """History of this daemon for the API, in memory and bounded."""

    def __init__(self, unix: Callable[[], UnixTime]) -> None:
        self._unix = unix
        self.started_at = unix()
        self.rounds: OrderedDict[int, RoundRow] = OrderedDict()
        self.inner_losses = Curve()
        self.validation_losses = Curve()
        self.spans: deque[dict[str, Any]] = deque(maxlen=SPANS_KEPT)
        self.alerts: OrderedDict[str, Alert] = OrderedDict()
        self.others = OthersTimeline()
        self.phases: deque[OtherSpan] = deque(maxlen=PHASES_KEPT)
        self.totals = Totals()
        self.sinks: list[Sink] = []
        self.phase = PhaseProgress()

    def now(self) -> UnixTime:
        """Seconds since 1970; only for what people read."""
        return self._unix()

    def row(self, round_index: int) -> RoundRow:
        """The row of a round, made on first use; the oldest row goes when there are too many."""
        row = self.rounds.get(round_index)
        if row is None:
            row = self.rounds[round_index] = RoundRow(round_index, started_at=self._unix())
            while len(self.rounds) > ROUNDS_KEPT:
                self.rounds.popitem(last=False)
        return row

    def add_inner_loss(self, global_step: int, loss: float) -> None:
        """One inner step's loss."""
        self.inner_losses.add((self._unix(), global_step, loss))
        self.tell("loss/inner", loss, global_step)

    def add_validation_loss(self, round_index: int, loss: float) -> None:
        """Validation loss of the shared anchor at a height."""
        self.validation_losses.add((self._unix(), round_index, loss))
        self.tell("loss/validation", loss, round_index)

    def tell(self, name: str, value: float, step: int) -> None:
        """Hand a value to the sinks; never waits."""
        for sink in self.sinks:
            sink.offer(Scalar(name, value, step, self._unix()))

    def add_span(self, kind: str, start: float, end: float, round_index: int) -> None:
        """A stretch of time in which the site computed, exchanged, idled or applied. Neighbours are joined."""
        last = self.spans[-1] if self.spans else None
        if last and last["kind"] == kind and last["round"] == round_index and 0 <= start - last["end"] < 0.05:
            last["end"] = end
            return
        self.spans.append({"kind": kind, "start": start, "end": end, "round": round_index})

    def raise_alert(self, alert: Alert) -> None:
        """Show it until `clear_alert`; a repeated code replaces the older text."""
        before = self.alerts.get(alert.code)
        self.alerts[alert.code] = replace(alert, since=before.since if before is not None else self._unix())
        while len(self.alerts) > ALERTS_KEPT:
            self.alerts.popitem(last=False)

    def clear_alert(self, code: str) -> None:
        """The reason is gone."""
        self.alerts.pop(code, None)
