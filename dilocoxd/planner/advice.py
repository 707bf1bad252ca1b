"""The nearest settings that are better: one field of [strategy] changed, nothing worse, something clearly better."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.errors import ConfigError
from dilocoxd.planner.plan import Deployment, Plan, plan_run, plan_with

INNER_STEPS_MAX: Final = 127
"""Longer phases have no row in the study; nothing is advised that nobody has measured."""
FACTORS: Final = (2 / 3, 3 / 2, 1 / 2, 2.0, 1 / 4, 4.0)
CODECS: Final = ("int8", "int4", "int2")
TOKENS_GAIN, TOKENS_LOSS = 1.02, 0.995
LOSS_GAIN, LOSS_LOSS = 0.1, 0.05
"""Points of the expected gap; below them the study cannot tell two rows apart."""
TRAFFIC_GAIN: Final = 0.75
"""Bytes per hour that are worth a change by themselves."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of run.toml and what it would make of the plan."""

    field: str
    before: str
    after: str
    plan: Plan


def better_settings(manifest: Manifest, place: Deployment, plan: Plan, count: int = 2) -> list[Advice]:
    """At most `count` single changes, the smallest first: better in speed, loss or traffic, no slower, no loss."""
    found = []
    for field, value, distance in sorted(_changes(manifest), key=lambda change: change[2]):
        changed = _changed(manifest, {field: value})
        if changed is None:
            continue
        keeps_weight = field in ("inner_steps", "delay") and manifest.strategy.delay != "streaming"
        other = plan_with(changed, place, plan.footprint) if keeps_weight else plan_run(changed, place)
        if _is_better(other, plan):
            before = str(getattr(manifest.strategy, field))
            found.append((distance, Advice(f"strategy.{field}", before, str(value), other)))
    fields: list[Advice] = []
    for _, advice in found:
        if advice.field not in [one.field for one in fields]:
            fields.append(advice)  # two values of one field are no two choices
    return (fields + [advice for _, advice in found if advice not in fields])[:count]


def _is_better(other: Plan, plan: Plan) -> bool:
    tokens = other.tokens_per_s / plan.tokens_per_s
    loss = plan.loss_gap_percent - other.loss_gap_percent
    is_no_worse = tokens >= TOKENS_LOSS and loss >= -LOSS_LOSS
    is_leaner = other.bytes_per_hour < TRAFFIC_GAIN * plan.bytes_per_hour  # a site alone sends nothing in any case
    return is_no_worse and (tokens >= TOKENS_GAIN or loss >= LOSS_GAIN or is_leaner)


def _changes(manifest: Manifest) -> Iterator[tuple[str, Any, float]]:
    """(field, value, distance): a doubling is as far as the next codec."""
    strategy = manifest.strategy
    for factor in FACTORS:
        steps = round(strategy.inner_steps * factor)
        if 1 <= steps <= max(INNER_STEPS_MAX, strategy.inner_steps) and steps != strategy.inner_steps:
            yield "inner_steps", steps, abs(math.log2(factor))
    if strategy.codec in CODECS:
        here = CODECS.index(strategy.codec)
        for index, codec in enumerate(CODECS):
            if index != here:
                yield "codec", codec, abs(index - here)
    if strategy.delay in ("none", "phase", "eager"):
        yield "delay", "arrival", 1.0


def _changed(manifest: Manifest, fields: dict[str, Any]) -> Manifest | None:
    tables = manifest.model_dump(mode="json")
    tables["strategy"] |= fields
    try:
        return manifest_from_tables(tables, source="a neighbouring setting")
    except ConfigError:
        return None  # schedules and claims may tie a field down
