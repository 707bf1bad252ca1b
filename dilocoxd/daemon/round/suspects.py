"""Names sites whose contributions stand out: far too large, or against everybody else. Alarms only; weights stay.
Names sites that voted twice too, with the evidence that the round machine found.

Too large: results say how many median norms a clipped contribution had (outer/clipping.py), so every site sees it.
Against: results say of whom nothing was counted (outer/contrary.py), so every site sees that too: a site is contrary
when that was so in half of the segments, in CONTRARY_ROUNDS of its rounds one after the other. Where nothing is left
out, whoever reduces segments compares sketches of the shares: the median of a site's cosines with the others is below
CONTRARY_COSINE as often. Source: docs/adr/0015.
"""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.telemetry.catalogue import Event
from dilocoxd.telemetry.suspicions import (
    ContributionContrary,
    ContributionDropped,
    ContributionOutsized,
    VoteContradicted,
    name_newest,
    newest_first,
)
from dilocoxd.wire.entry import Entry, Evidence
from dilocoxd.wire.local.outer_worker import SKETCH_NUMBERS, ClippedShare

OUTSIZED_NORMS: Final = 10.0
"""A site that brings back the work of many phases at once stays below, as a rule."""
CONTRARY_COSINE: Final = -0.2
CONTRARY_SEGMENTS: Final = 0.5
"""Part of all segments in which nothing of a contribution was counted."""
CONTRARY_ROUNDS: Final = 2
STRIKES_MAX: Final = 1024
"""Sites that are remembered for one contrary round, each way: as many as an entry can name."""


@dataclass(slots=True)
class _Sketches:
    """Of one exchange: sums over the segments that we reduce, by contributor."""

    of: tuple[int, int]
    peers: tuple[PeerId, ...]
    sums: list[list[float]]


@dataclass(slots=True)
class Suspects:
    """Told what the outer worker found; raises alerts and emits events."""

    alerts: AlertBook
    emit: Callable[[Event], None]
    _outsized: dict[str, str] = field(default_factory=dict)
    _contrary: dict[str, str] = field(default_factory=dict)
    _strikes: dict[PeerId, int] = field(default_factory=dict)
    _drops: dict[PeerId, int] = field(default_factory=dict)
    """Entries one after the other that left most of a site's contribution out."""
    _sketches: _Sketches | None = None
    _voted_twice: dict[str, str] = field(default_factory=dict)

    def voted_twice(self, evidence: Evidence, me: PeerId) -> None:
        """Two votes of a site contradict each other (R27)."""
        peer, where = evidence.peer, f"attempt {evidence.attempt} of round {evidence.round}"
        entries = tuple(voted.entry_hash.hex()[:16] for voted in (evidence.first, evidence.second))
        self.emit(VoteContradicted(peer=peer, round=evidence.round, attempt=evidence.attempt, entries=entries))
        who = "this site itself" if peer == me else "the site"
        name_newest(self._voted_twice, peer, f"{peer}: {who} voted for two entries in {where}")
        self._raise("double_vote", self._voted_twice)

    def applied(self, entry: Entry, clipped: Sequence[ClippedShare]) -> None:
        """An entry was applied; its results name these as clipped."""
        found = False
        for share in clipped:
            if share.place >= len(entry.contributions) or share.norms < OUTSIZED_NORMS:
                continue
            peer, found = entry.contributions[share.place].peer, True
            self.emit(
                ContributionOutsized(peer=peer, round=entry.round, norms=share.norms, num_segments=share.num_segments)
            )
            name_newest(self._outsized, peer, f"{peer}: {share.norms:.3g} times the median norm in entry {entry.round}")
        if found:
            self._raise("outsized_contribution", self._outsized)
        self._dropped(entry, {share.place: share.dropped for share in clipped if share.dropped >= CONTRARY_SEGMENTS})

    def _dropped(self, entry: Entry, parts: Mapping[int, float]) -> None:
        found = False
        for place, contribution in enumerate(entry.contributions):
            peer = contribution.peer
            before = self._drops.pop(peer, 0)
            if place not in parts:
                continue
            self._drops[peer] = before + 1
            self.emit(ContributionDropped(peer=peer, round=entry.round, part=parts[place]))
            if before + 1 >= CONTRARY_ROUNDS:
                found = True
                left_out = f"{parts[place]:.0%} left out of entry {entry.round}, against the others"
                name_newest(self._contrary, peer, f"{peer}: {left_out}")
        self._drops = dict(list(self._drops.items())[-STRIKES_MAX:])
        if found:
            self._raise("contrary_contribution", self._contrary)

    def reduced(self, attempt: tuple[int, int], peers: Sequence[PeerId], sketches: bytes) -> None:
        """We reduced a segment of this (round, attempt)."""
        numbers = array("f", sketches)
        if len(numbers) != SKETCH_NUMBERS * len(peers):
            return
        if self._sketches is None or self._sketches.of != attempt:
            self._sketches = _Sketches(attempt, tuple(peers), [[0.0] * SKETCH_NUMBERS for _ in peers])
        for place, sums in enumerate(self._sketches.sums):
            for index in range(SKETCH_NUMBERS):
                sums[index] += numbers[place * SKETCH_NUMBERS + index]

    def finished(self, round_index: RoundIndex) -> None:
        """The round has its entry: judge what we reduced of it."""
        sketches, self._sketches = self._sketches, None
        if sketches is None or sketches.of[0] != round_index:
            return
        found = False
        for peer, cosine in zip(sketches.peers, typical_cosines(sketches.sums), strict=True):
            before = self._strikes.pop(peer, 0)
            strikes = self._strikes[peer] = before + 1 if cosine < CONTRARY_COSINE else 0
            if strikes >= CONTRARY_ROUNDS:
                found = True
                self.emit(ContributionContrary(peer=peer, round=round_index, cosine=cosine))
                name_newest(self._contrary, peer, f"{peer}: cosine {cosine:.2f} with the others in entry {round_index}")
        newest = [(peer, count) for peer, count in self._strikes.items() if count][-STRIKES_MAX:]
        self._strikes = dict(newest)
        if found:
            self._raise("contrary_contribution", self._contrary)

    def _raise(self, code: str, texts: dict[str, str]) -> None:
        self.alerts.alert(code, newest_first(texts))


def typical_cosines(sketches: Sequence[Sequence[float]]) -> list[float]:
    """Of each sketch: the median of its cosines with all others; 0 where there are less than three, or it is zero."""
    if len(sketches) < 3:
        return [0.0] * len(sketches)
    norms = [math.sqrt(sum(value * value for value in sketch)) for sketch in sketches]

    def cosine(a: int, b: int) -> float:
        size = norms[a] * norms[b]
        if not 0 < size < math.inf:
            return 0.0
        return sum(x * y for x, y in zip(sketches[a], sketches[b], strict=True)) / size

    places = range(len(sketches))
    return [median(cosine(place, other) for other in places if other != place) for place in places]
