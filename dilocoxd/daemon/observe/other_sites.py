"""What is known of the other sites besides their records: what they did when, and the inner losses that they tell.

What they did is what they say of themselves, silence, exchanges; read by GET /v1/timeline/sites. What they tell of
losses is a claim for people (protocol L20): nothing here is read by anything that decides. It is kept only where an
entry of our chain names the phase, so that it can move neither time nor round. All of it is bounded.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.answers.history import SiteSpan, SiteTimeline
from dilocoxd.answers.losses import mean_of_known
from dilocoxd.answers.rounds import RoundRow
from dilocoxd.wire.records import PhaseLoss

SITES_KEPT: Final = 128
SPANS_KEPT: Final = 1000
GAP_S: Final = 5.0
"""Looks that are further apart than this leave a gap: nobody looked."""
PHASES_KEPT: Final = 10_000
POINTS_KEPT: Final = 240
"""Of one other site: when there are twice as many, all but the newest become means of some rounds each."""
NEWEST_KEPT: Final = POINTS_KEPT // 4

Point = tuple[float, int, float]
"""(unix seconds, round, mean loss of the phase that went into it)."""


class OthersTimeline:
    """Spans of each other site."""

    def __init__(self) -> None:
        self._sites: OrderedDict[str, deque[SiteSpan]] = OrderedDict()
        self._states: dict[str, SiteSpan] = {}

    def add(self, peer: str, span: SiteSpan) -> None:
        """A span that is over."""
        if peer not in self._sites:
            self._sites[peer] = deque(maxlen=SPANS_KEPT)
            while len(self._sites) > SITES_KEPT:
                gone, _ = self._sites.popitem(last=False)
                self._states.pop(gone, None)
        self._sites[peer].append(span)

    def look(self, peer: str, kind: str, now: float) -> None:
        """The site does `kind` right now: a stretch grows, or a new one begins."""
        last = self._states.get(peer)
        is_continued = last is not None and 0 <= now - last.end < GAP_S
        if last is not None and is_continued:
            last.end = now
        if last is None or not is_continued or last.kind != kind:
            span = self._states[peer] = SiteSpan(kind, now, now, None)
            self.add(peer, span)

    def since(self, since: float, name_of: Callable[[str], str]) -> list[SiteTimeline]:
        """Sites with the spans that ended after `since`."""
        return [
            SiteTimeline(
                peer_id=peer, name=name_of(peer), is_self=False, spans=[span for span in spans if span.end > since]
            )
            for peer, spans in self._sites.items()
        ]


class PhaseBook:
    """Mean loss of each of our own phases."""

    def __init__(self) -> None:
        self.losses: OrderedDict[int, float] = OrderedDict()

    def keep(self, phase: int, loss: float) -> None:
        """The oldest goes when there are too many."""
        self.losses[phase] = loss
        while len(self.losses) > PHASES_KEPT:
            self.losses.popitem(last=False)

    def begin_with(self, earlier: Mapping[int, float]) -> None:
        """Put phases of earlier lives before those that are here."""
        here = dict(self.losses)
        self.losses.clear()
        for phase, loss in ({**earlier, **here}).items():
            self.keep(phase, loss)


def placed(rows: Sequence[RoundRow], peer: str, items: Iterable[PhaseLoss]) -> list[tuple[int, Point]]:
    """(phase, point) of the phases that an entry names, ascending. `rows` ascend. Slow for many: for a thread."""
    wanted = {item.phase: item.loss for item in items}
    found = []
    for row in reversed(rows):
        phases = [one.phase for one in row.contributors if one.peer == peer] if row.committed_at else []
        found += [(one, (row.committed_at, row.round, wanted[one])) for one in phases if one in wanted]
        if phases and min(phases) < min(wanted, default=0):
            break  # older entries name older phases
    return sorted(found)


@dataclass(slots=True)
class _Site:
    points: list[Point] = field(default_factory=list)
    next_phase: int = 0
    stretch: int = 1
    """Rounds that one of the older points stands for."""


class OtherLosses:
    """Curves of the other sites."""

    def __init__(self) -> None:
        self._sites: OrderedDict[str, _Site] = OrderedDict()

    def next_phase(self, peer: str) -> int:
        """From where on the site is to be asked."""
        return self._sites[peer].next_phase if peer in self._sites else 0

    def newest(self, peer: str) -> Point | None:
        """What it told last; None: nothing."""
        return self._sites[peer].points[-1] if peer in self._sites and self._sites[peer].points else None

    def of(self, peer: str) -> Sequence[Point]:
        """Its curve, ascending."""
        return tuple(self._sites[peer].points) if peer in self._sites else ()

    def sites(self) -> list[str]:
        """Those of which there are points."""
        return [peer for peer, site in self._sites.items() if site.points]

    def add(self, peer: str, found: Sequence[tuple[int, Point]], read_to: int = 0) -> None:
        """What `placed` made of an answer; phases below `read_to` are not asked for again though no entry names them.

        The site that was heard of longest ago goes when there are too many."""
        site = self._sites.setdefault(peer, _Site())
        self._sites.move_to_end(peer)
        while len(self._sites) > SITES_KEPT:
            self._sites.popitem(last=False)
        site.next_phase = max(site.next_phase, read_to)
        last = site.points[-1][1] if site.points else -1
        for phase, point in found:
            site.next_phase = max(site.next_phase, phase + 1)
            if point[1] > last:
                site.points.append(point)
                last = point[1]
        if len(site.points) < 2 * POINTS_KEPT:
            return
        site.points = _thinner(site.points, site.stretch)
        while len(site.points) > POINTS_KEPT + NEWEST_KEPT:
            site.stretch *= 2
            site.points = _thinner(site.points, site.stretch)


def _thinner(points: list[Point], stretch: int) -> list[Point]:
    """The rounds of each stretch become their mean, at the last of them; the newest points stay as they are."""
    old, new = points[:-NEWEST_KEPT], points[-NEWEST_KEPT:]
    groups = [list(group) for _, group in itertools.groupby(old, lambda point: point[1] // stretch)]
    return [*((group[-1][0], group[-1][1], mean_of_known(one[2] for one in group)) for group in groups), *new]
