"""Streaming DiLoCo: fragments synchronise in turn, each tau inner steps after it was sent, mixed into what was trained.

Fragment p (a set of segments) is offered at steps t with (t + offset_p) mod H = 0; at t + tau the round commits and
    theta_p <- alpha theta_p + (1 - alpha) x_p
alpha = 0 forgets the tau steps, 1 is local training, 0.5 the authors' default. Fragments are sets of segments, or, with
the transform of compress/fragments.py, stretches of all segments as in the daemons: then each one names all segments,
and its turn follows from the number of commits. Source: arXiv 2501.18512 (ALGORITHMS 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.parameters.mixing import mix_
from tests.reference.engine import Engine, Offer
from tests.reference.phases import Train


@dataclass(frozen=True, slots=True)
class StreamingSettings:
    """`fragments`: segment indices of each; `offsets`: inner steps, one per fragment."""

    fragments: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    inner_steps: int
    overlap_steps: int
    alpha: float

    def __post_init__(self) -> None:
        if len(self.fragments) != len(self.offsets) or not self.fragments:
            raise ConfigError("streaming needs one offset per fragment and at least one fragment")
        if not 0 <= self.overlap_steps < self.inner_steps or not 0 <= self.alpha <= 1:
            raise ConfigError(
                f"streaming overlap {self.overlap_steps} and alpha {self.alpha} do not fit; "
                f"use 0 <= overlap < {self.inner_steps} and 0 <= alpha <= 1"
            )


@dataclass(slots=True)
class _InFlight:
    fragment: int
    offer: Offer
    due: int


class Streaming:
    """All sites in step, one inner step at a time."""

    def __init__(self, engine: Engine, train: Train, settings: StreamingSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.thetas = {site: engine.anchor.clone() for site in engine.feedback}
        self.num_steps = 0
        self.num_syncs = [0] * len(settings.fragments)
        self.in_flight_max = 0
        self._train = train
        self._in_flight: list[_InFlight] = []

    def run_steps(self, count: int) -> None:
        """Train `count` inner steps at every site, sending and merging fragments as they fall due."""
        for _ in range(count):
            for site, theta in self.thetas.items():
                self._train(site, theta, self.num_steps, 1)
            self.num_steps += 1
            for index, offset in enumerate(self.settings.offsets):
                if (self.num_steps + offset) % self.settings.inner_steps == 0:
                    self._send(index)
            self.in_flight_max = max(self.in_flight_max, len(self._in_flight))
            self._merge_due()

    def finish(self) -> None:
        """Commit what is under way."""
        for flight in self._in_flight:
            flight.due = self.num_steps
        self._merge_due()

    def _send(self, fragment: int) -> None:
        updates = {site: self.engine.anchor - theta for site, theta in self.thetas.items()}
        offer = self.engine.offer(updates, segments=self.settings.fragments[fragment])
        self._in_flight.append(_InFlight(fragment, offer, self.num_steps + self.settings.overlap_steps))

    def _merge_due(self) -> None:
        for flight in [each for each in self._in_flight if each.due <= self.num_steps]:
            self._in_flight.remove(flight)
            self.engine.recipe.transform.tune(sum(self.num_syncs), 0)
            self.engine.commit(flight.offer)
            self.num_syncs[flight.fragment] += 1
            for theta in self.thetas.values():
                for segment in flight.offer.segments:
                    moved = self.engine.recipe.transform.touched(segment)
                    here = slice(segment.start + moved.start, segment.start + moved.stop)
                    mix_(theta[here], self.engine.anchor[here], self.settings.alpha)


def strided_fragments(group_of_segment: Sequence[int], num_fragments: int) -> tuple[tuple[int, ...], ...]:
    """Segments by fragment, the groups (transformer blocks) dealt out in turn: the authors' strided pattern."""
    fragments: list[list[int]] = [[] for _ in range(num_fragments)]
    for segment, group in enumerate(group_of_segment):
        fragments[group % num_fragments].append(segment)
    return tuple(tuple(each) for each in fragments if each)
