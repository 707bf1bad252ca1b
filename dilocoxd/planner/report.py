"""A plan in words, one fact a line, and as values for JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dilocoxd.config.manifest import Manifest
from dilocoxd.planner.advice import Advice
from dilocoxd.planner.loss import LIMITS
from dilocoxd.planner.pace import outer_part_s
from dilocoxd.planner.plan import Deployment, Plan
from dilocoxd.planner.quantities import in_decimal, in_seconds


def lines(manifest: Manifest, place: Deployment, plan: Plan, processors: str) -> list[tuple[str, str]]:
    """(name, text) of each fact, most asked for first. `processors`: those that a computed step is of, in words."""
    weight, pace, strategy, num_sites = plan.footprint, plan.pace, manifest.strategy, place.shape.num_sites
    extended = f", extended to {pace.steps} steps" if pace.steps > strategy.inner_steps else ""
    computed = "" if place.compute.step_s else f" (computed for {processors}; give --step-time)"
    where = "the whole site"
    if place.shape.ranks > 1:
        who = "stages" if place.shape.in_stage == 1 else "trainers"
        where = f"each of {place.shape.ranks} {who} at most"
    node = "main memory of one node" if place.shape.on_gpu else "one node with everything"
    if place.nodes > 1:
        node = f"each of {place.nodes} nodes {in_decimal(weight.node_bytes / place.nodes, 'B')}, the head"
    outer_parts = place.shape.outer_parts
    return [
        ("model", f"{weight.parameters:,} parameters in {weight.num_segments} segments"),
        ("strategy", f"{strategy.codec}, {strategy.transform}, delay {strategy.delay}, H = {strategy.inner_steps}"),
        ("payload", f"{in_decimal(weight.payload_bytes, 'B')}, {_ratio(4 * weight.parameters, weight.payload_bytes)}"),
        ("exchange", _exchange(plan) if num_sites > 1 else "none: a site alone has nobody to exchange with"),
        ("inner step", f"{in_seconds(plan.step_s)}{computed}"),
        ("round", f"{in_seconds(pace.round_s)}{extended}; tau/H = {pace.staleness:.2f}"),
        ("trainers", f"{pace.utilisation:.1%} busy, idle {in_seconds(pace.idle_s)} of each round"),
        ("speed", f"{in_decimal(plan.tokens_per_s, 'tokens')}/s, {_together(num_sites)}"),
        ("traffic", _traffic(plan) if num_sites > 1 else "none"),
        (
            "memory",
            f"trainers {in_decimal(weight.trainer_bytes, 'B')} ({where}), outer worker"
            f" {in_decimal(weight.outer_worker_bytes, 'B')}, {node}"
            f" {in_decimal(weight.node_bytes, 'B')}",
        ),
        (
            "outer part",
            f"{in_seconds(outer_part_s(weight.parameters, outer_parts))} of a core in each round"
            + (f", each of {outer_parts}" if outer_parts > 1 else ""),
        ),
        ("disk", in_decimal(weight.disk_bytes, "B")),
        ("loss", f"about +{plan.loss_gap_percent:.1f}% against all-reduce after every step; {LIMITS}"),
    ]


def _exchange(plan: Plan) -> str:
    exchange = plan.exchange
    return (
        f"{in_seconds(exchange.total_s)}: link {in_seconds(exchange.transfer_s)}, round trips"
        f" {in_seconds(exchange.latency_s)}, encode {in_seconds(exchange.encode_s)}, reduce"
        f" {in_seconds(exchange.reduce_s)}, decode {in_seconds(exchange.decode_s)}, votes"
        f" {in_seconds(exchange.vote_s)}, fixed {in_seconds(exchange.fixed_s)}, of all this"
        f" {in_seconds(exchange.hidden_s)} at the same time"
    )


def _traffic(plan: Plan) -> str:
    return (
        f"{in_decimal(plan.bytes_per_hour, 'B')} an hour, {in_decimal(plan.bytes_per_day, 'B')} a day, each way;"
        f" {plan.bytes_saved:,.0f} times fewer bytes than fp32 gradients after each step"
    )


def advice_lines(advice: Sequence[Advice], plan: Plan) -> list[str]:
    """One line for each better setting, or that there is none."""
    if not advice:
        return ["no single change of [strategy] is better in speed or loss and worse in neither"]
    return [f"{one.field} = {one.after} (now {one.before}): {_gain(one.plan, plan)}" for one in advice]


def _gain(other: Plan, plan: Plan) -> str:
    sent = f", traffic {_change(other.bytes_per_hour, plan.bytes_per_hour, 0)}" if plan.bytes_per_hour else ""
    return (
        f"speed {_change(other.tokens_per_s, plan.tokens_per_s, 1)}, loss"
        f" {other.loss_gap_percent - plan.loss_gap_percent:+.2f} points{sent}"
    )


def _change(after: float, before: float, digits: int) -> str:
    """In percent; what is rounded to nothing has no minus."""
    return f"{round(100 * (after / before - 1), digits) + 0.0:+.{digits}f}%"


def values(plan: Plan, advice: Sequence[Advice]) -> dict[str, Any]:
    """Everything as plain values; times in seconds."""
    found = dataclasses.asdict(plan)
    found["exchange"]["total_s"] = plan.exchange.total_s
    found["better"] = [
        {"field": one.field, "before": one.before, "after": one.after, "plan": dataclasses.asdict(one.plan)}
        for one in advice
    ]
    return found


def _together(num_sites: int) -> str:
    return f"all {num_sites} sites together" if num_sites > 1 else "of a site alone"


def _ratio(before: float, after: float) -> str:
    return f"{before / after:.3g} times smaller than fp32"
