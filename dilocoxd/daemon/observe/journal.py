"""What the daemon remembers for whoever asks: rounds, losses, timeline, alerts, totals (docs/internals.md section 6).

Drivers write here, the HTTP floor reads. Everything is bounded; nothing here decides anything.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from dilocoxd.answers.alerts import PastAlert, StandingAlert
from dilocoxd.answers.history import OwnKind, OwnSpan, SiteSpan
from dilocoxd.answers.losses import mean_of_known
from dilocoxd.answers.progress import RunProgress
from dilocoxd.answers.rounds import RoundRow
from dilocoxd.daemon.observe.other_sites import OtherLosses, OthersTimeline, PhaseBook
from dilocoxd.ids import UnixTime
from dilocoxd.site_names import in_words
from dilocoxd.telemetry.sinks import OF_STEPS, Scalar, Sink

ROUNDS_KEPT: Final = 10_000
LOSSES_KEPT: Final = 20_000
"""Newest losses as they were measured; older ones are kept as means, so that a curve always begins at the start."""
NONE: Final[Mapping[str, float]] = MappingProxyType({})
SPANS_KEPT: Final = 10_000
FAILURES_KEPT: Final = 20
ALERTS_KEPT: Final = 32
PHASES_KEPT: Final = 2000
PAST_ALERTS_KEPT: Final = 200
EVENTS_KEPT: Final = 500
"""Newest events, for who opens the page now."""

FIGURES_TOLD: Final = (
    *("learning_rate", "gradient_norm", "tokens_per_s", "model_flops_per_s", "mfu", "data_s", "bubble"),
    *("skipped_steps", "memory_bytes"),
)
"""Of RunProgress, for sinks; and the largest of rank_memory_bytes."""

Point = tuple[float, int, float]
"""(unix seconds, number, loss); a loss may be no number."""


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

    def begin_with(self, points: Iterable[Point]) -> None:
        """Put older points before those that are here."""
        here = self.points()
        self._new.clear()
        self._old.clear()
        self._open.clear()
        self._stretch = 2
        for point in (*points, *here):
            self.add(point)

    def points(self) -> list[Point]:
        """All of it, ascending."""
        return [*self._old, *self._open, *self._new]


def mean_point(points: list[Point]) -> Point:
    """Time and number of the last one, mean of the known losses."""
    return (points[-1][0], points[-1][1], mean_of_known(point[2] for point in points))


@dataclass(slots=True)
class Counters:
    """Counted since the daemon started."""

    tokens: int = 0
    inner_steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    idle_s: float = 0.0
    train_s: float = 0.0
    attempts_failed: int = 0


class Journal:
    """History of this daemon for the API, in memory and bounded."""

    def __init__(self, unix: Callable[[], UnixTime]) -> None:
        self._unix = unix
        self.started_at = unix()
        self.rounds: OrderedDict[int, RoundRow] = OrderedDict()
        self.inner_losses = Curve()
        self.validation_losses = Curve()
        self.validation_by_source: dict[str, float] = {}
        self.losses_told: int | None = None
        """By a loop of the operator's own, of how many batches; None: it has told none since the daemon started."""
        self.spans: deque[OwnSpan] = deque(maxlen=SPANS_KEPT)
        self.alerts: OrderedDict[str, StandingAlert] = OrderedDict()
        self.others = OthersTimeline()
        self.own_phases = PhaseBook()
        self.other_losses = OtherLosses()
        self.phases: deque[SiteSpan] = deque(maxlen=PHASES_KEPT)
        self.totals = Counters()
        self.earlier = Counters()
        """Of earlier lives of this daemon, as far as its log and events tell."""
        self.counted_since: float | None = None
        """Since when `earlier` counts bytes and failed attempts; None: nothing of earlier lives is known."""
        self.past_alerts: deque[PastAlert] = deque(maxlen=PAST_ALERTS_KEPT)
        self.records: deque[dict[str, object]] = deque(maxlen=EVENTS_KEPT)
        self.sinks: list[Sink] = []
        self._told_step = 0
        self.in_words: Callable[[str], str] = in_words
        """A sentence with names in the place of peer ids."""

    def now(self) -> UnixTime:
        """Seconds since 1970; only for what people read."""
        return self._unix()

    def row(self, round_index: int) -> RoundRow:
        """The row of a round; it begins when somebody first asks for it."""
        return self.rounds.get(round_index) or self.keep(RoundRow(round=round_index, started_at=self._unix()))

    def newest_rounds(self, limit: int) -> list[RoundRow]:
        """The newest rows, ascending; cheap."""
        numbers = sorted(itertools.islice(reversed(self.rounds), limit))
        return [self.rounds[number] for number in numbers]

    def keep(self, row: RoundRow) -> RoundRow:
        """This is what is known of its round now; the oldest row goes when there are too many."""
        self.rounds[row.round] = row
        while len(self.rounds) > ROUNDS_KEPT:
            self.rounds.popitem(last=False)
        return row

    def add_failure(self, round_index: int, reason: str) -> None:
        """Keep the first reasons; later ones of the same round repeat them."""
        row = self.row(round_index)
        if len(row.failures) < FAILURES_KEPT:
            self.keep(replace(row, failures=(*row.failures, self.in_words(reason))))

    def add_inner_loss(self, global_step: int, loss: float) -> None:
        """One inner step's loss."""
        self.inner_losses.add((self._unix(), global_step, loss))
        self.tell("loss/inner", loss, global_step)

    def add_validation_loss(self, round_index: int, loss: float, by_source: Mapping[str, float] = NONE) -> None:
        """Validation loss of the shared anchor at a height, and on what each token store holds out."""
        self.validation_by_source = dict(by_source)
        for name, one in by_source.items():
            self.tell(f"loss/validation/{name}", one, round_index)
        self.validation_losses.add((self._unix(), round_index, loss))
        self.tell("loss/validation", loss, round_index)

    def tell_figures(self, progress: RunProgress) -> None:
        """Hand the sinks how training goes here, unless no inner step has ended since the last time."""
        step = self.inner_losses.newest[1] if self.inner_losses.newest is not None else 0
        if step == self._told_step:
            return
        self._told_step = step
        found = {name: getattr(progress, name) for name in FIGURES_TOLD}
        found["rank_memory_bytes"] = max(progress.rank_memory_bytes, default=None)
        for name, value in found.items():
            if value is not None:
                self.tell(f"{OF_STEPS}{name}", float(value), step)

    def remember(self, record: dict[str, object]) -> None:
        """One event, for who asks for the newest ones."""
        self.records.append(record)

    def tell(self, name: str, value: float, step: int) -> None:
        """Hand a value to the sinks; never waits."""
        for sink in self.sinks:
            sink.offer(Scalar(name, value, step, self._unix()))

    @property
    def num_dropped(self) -> int:
        """Values that sinks dropped since the start."""
        return sum(sink.num_dropped for sink in self.sinks)

    def add_span(self, kind: OwnKind, start: float, end: float, round_index: int) -> None:
        """A stretch of time in which the site computed, exchanged, idled or applied. Neighbours are joined."""
        last = self.spans[-1] if self.spans else None
        if last and last.kind == kind and last.round == round_index and 0 <= start - last.end < 0.05:
            last.end = end
            return
        self.spans.append(OwnSpan(kind, start, end, round_index))

    def raise_alert(self, alert: StandingAlert) -> None:
        """Show it until `clear_alert`, from now on; a repeated code replaces the older text."""
        before = self.alerts.get(alert.code)
        since = before.since if before is not None else self._unix()
        self.alerts[alert.code] = replace(alert, text=self.in_words(alert.text), since=since)
        while len(self.alerts) > ALERTS_KEPT:
            self.alerts.popitem(last=False)

    def clear_alert(self, code: str) -> None:
        """The reason is gone."""
        if (alert := self.alerts.pop(code, None)) is not None:
            self.past_alerts.append(
                PastAlert(
                    code=code, severity=alert.severity, text=alert.text, since=alert.since, cleared_at=self._unix()
                )
            )
