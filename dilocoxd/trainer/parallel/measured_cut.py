"""Which cut of the layers would make a pipeline faster, by the time that each of its places takes to compute.

A place is one process of the pipeline with all its slices of the model; those who share it count as one, by their
mean. Its seconds are taken to divide among layers and head as their arithmetic does (models/cut.py): where they do not,
the cut is measured again and mended at the next start. Pure, but for the file in which a cut waits for that.
"""

from __future__ import annotations

import heapq
import json
import logging
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from dilocoxd.config.sections.schedules import SliceOrder
from dilocoxd.errors import StoreError
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import head_flops, layer_flops
from dilocoxd.store.durable import write_json
from dilocoxd.wire.local.trainer import RANKS_MAX, UNKNOWN, StageTimes

log = logging.getLogger(__name__)

WORTH_TELLING: Final = 0.05
"""Part of a step that another cut must save; the alert comes later than it goes (daemon/observe/alert_rules.py)."""
WORTH_TAKING: Final = 0.10
"""Likewise, before a site that asks for it takes that cut: moving layers costs the next start a look at all moments."""
STEPS: Final = 32
"""Whose median counts: a step in which something else took the processor is not what a stage needs."""
STEPS_MIN: Final = 12
LOOK_EVERY_STEPS: Final = 4


@dataclass(frozen=True, slots=True)
class PlaceCosts:
    """Arithmetic of one token in the places of a pipeline."""

    layer: int
    head: int
    """Of the last slice, besides its layers."""
    order: SliceOrder

    def of(self, layers: Sequence[int]) -> list[int]:
        """Of each place, with so many layers in each slice."""
        costs = [0] * self.order.ranks
        for index, number in enumerate(layers):
            costs[self.order.rank(index)] += number * self.layer
        costs[self.order.rank(len(layers) - 1)] += self.head
        return costs


def pipeline_seconds(seconds: Sequence[float], pieces: int) -> float:
    """Time of a step's forward and backward passes where places compute so long in it: the slowest all the while, each
    other one a piece of its own until the pipeline is full, and until it is empty.

    `pieces`: microbatches x slices of a place.
    """
    slowest = max(seconds)
    return slowest + (sum(seconds) - slowest) / pieces


def faster_layers(costs: PlaceCosts, layers: Sequence[int], seconds: Sequence[float]) -> tuple[int, ...]:
    """Layers of each slice with which the slowest place takes least, at least one each.

    Args:
        layers: of each slice now.
        seconds: that each place computes in a step now; above 0.
    """
    order, per_place = costs.order, costs.order.per_rank
    paces = [spent / cost for spent, cost in zip(seconds, costs.of(layers), strict=True)]
    numbers = [per_place] * order.ranks
    # One layer after the other to the place that is done with it first: no other way has a smaller largest time.
    done_at = [
        ((cost + costs.layer) * pace, place)
        for place, (cost, pace) in enumerate(zip(costs.of([1] * len(layers)), paces, strict=True))
    ]
    heapq.heapify(done_at)
    for _ in range(sum(layers) - len(layers)):
        at, place = done_at[0]
        numbers[place] += 1
        heapq.heapreplace(done_at, (at + costs.layer * paces[place], place))
    found = [0] * len(layers)
    for place, number in enumerate(numbers):
        each, more = divmod(number, per_place)
        for turn, index in enumerate(order.slices(place)):
            found[index] = each + (turn < more)
    return tuple(found)


class StagePace:
    """What a pipeline's places took in the newest steps. All ranks note the same, and find the same."""

    def __init__(self, model: ModelConfig, order: SliceOrder, layers: Sequence[int], num_microbatches: int) -> None:
        """`layers`: of each slice now."""
        self.file: CutFile | None = None
        """Where a faster cut is kept for the next start; None: it is only told."""
        self.told: StageTimes | None = None
        """The newest that is known; None: not enough steps yet."""
        self._costs = PlaceCosts(layer_flops(model), head_flops(model), order)
        self._layers = tuple(layers)
        self._pieces = num_microbatches * order.per_rank
        self._steps: deque[tuple[float, ...]] = deque(maxlen=STEPS)
        self._num_steps = 0

    def note(self, computed_s: Sequence[float], step_s: float) -> None:
        """A step took `step_s`, in which each place computed so long."""
        self._steps.append((*computed_s, step_s))
        self._num_steps += 1
        if len(self._steps) >= STEPS_MIN and self._num_steps % LOOK_EVERY_STEPS == 0:
            *seconds, step = map(statistics.median, zip(*self._steps, strict=True))
            self.told = self._looked(seconds, step)

    def keep(self) -> None:
        """A boundary: the next start takes the cut that is faster, if it is worth it."""
        told = self.told
        if (
            self.file is None
            or told is None
            or told.saves < WORTH_TAKING
            or self.file.read(self._layers) == told.layers
        ):
            return
        try:
            self.file.write(told.layers)
        except StoreError as error:
            log.warning("the next start keeps this cut: %s", error)  # nothing that training needs

    def _looked(self, seconds: Sequence[float], step_s: float) -> StageTimes:
        told = StageTimes(tuple(seconds), (), UNKNOWN)
        if min(seconds) <= 0 or step_s <= 0 or len(self._layers) > RANKS_MAX:
            return told
        layers = faster_layers(self._costs, self._layers, seconds)
        now, then = self._costs.of(self._layers), self._costs.of(layers)
        after = [spent * new / old for spent, new, old in zip(seconds, then, now, strict=True)]
        saves = (pipeline_seconds(seconds, self._pieces) - pipeline_seconds(after, self._pieces)) / step_s
        return StageTimes(tuple(seconds), layers, min(1.0, saves)) if saves >= WORTH_TELLING else told


@dataclass(frozen=True, slots=True)
class CutFile:
    """A measured cut, on the disk of the head."""

    path: Path
    began: tuple[int, ...]
    """parallel.layers_per_stage of site.toml: a file that began with another one does not count."""
    order: SliceOrder | None = None
    """Nor does one that was measured where other processes had the slices; None: nobody asks."""

    def read(self, layers: Sequence[int]) -> tuple[int, ...]:
        """The cut, where it is one of as many layers among as many slices as `layers`; else none."""
        try:
            found = json.loads(self.path.read_bytes())
            began, kept = tuple(found["began"]), tuple(map(int, found["layers"]))
            places = found.get("places")
        except (OSError, ValueError, TypeError, KeyError):
            return ()
        is_fit = (len(kept), sum(kept)) == (len(layers), sum(layers)) and min(kept, default=0) > 0
        is_ours = began == self.began and (self.order is None or places == self._places(len(kept)))
        return kept if is_fit and is_ours else ()

    def write(self, layers: Sequence[int]) -> None:
        """Keep it. Raises StoreError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {"began": self.began, "layers": list(layers), "places": self._places(len(layers))})

    def _places(self, num_slices: int) -> list[int]:
        return [self.order.rank(index) for index in range(num_slices)] if self.order is not None else []

    def agreed(self, layers: Sequence[int]) -> tuple[int, ...]:
        """What rank 0, which is on the head, has read; `layers` if there is nothing. A collective call of all ranks."""
        told = torch.tensor(layers, dtype=torch.int64)
        if dist.get_rank() == 0:
            told = torch.tensor(self.read(layers) or layers, dtype=torch.int64)
        dist.broadcast(told, src=0, group=dist.new_group(backend="gloo"))
        return tuple(told.tolist())
