"""Everything `dilocoxd plan` says about one run on one kind of site: exchange, rounds, bytes, memory, loss.

Puts the formulas of this room together; decides nothing. Source: docs/planning.md.
"""

from dataclasses import dataclass

from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.config.manifest import Manifest
from dilocoxd.machines.exchange.cost import ExchangeCost, Link, bytes_each_way, exchange_cost
from dilocoxd.planner.footprint import Footprint, exchange_work, footprint
from dilocoxd.planner.loss import StudyRow, loss_gap_percent
from dilocoxd.planner.pace import Cadence, RoundUse, bytes_saved, pace, pipeline_step_s

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Compute:
    """What trains at a site. `flop_per_s` is what its processes reach together; `step_s`, if measured, wins."""

    flop_per_s: float
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """The sites of a run: all alike."""

    link: Link
    shape: SiteShape
    compute: Compute
    nodes: int = 1
    """Machines of each site, all alike."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Figures for one site, except tokens: those of all sites together."""

    footprint: Footprint
    step_s: float
    exchange: ExchangeCost
    pace: RoundUse
    tokens_per_s: float
    bytes_each_way: float
    """Of one exchange, up and down alike."""
    bytes_per_hour: float
    bytes_per_day: float
    bytes_saved: float
    """Times fewer bytes than all-reducing fp32 gradients after every step."""
    loss_gap_percent: float


def plan_run(manifest: Manifest, place: Deployment) -> Plan:
    """The plan of `manifest` at `place`. Raises ConfigError when no site can follow the manifest."""
    return plan_with(manifest, place, footprint(manifest, place.shape))


def plan_with(manifest: Manifest, place: Deployment, weight: Footprint) -> Plan:
    """The same with a footprint that is known already."""
    strategy, shape = manifest.strategy, place.shape
    step_s = place.compute.step_s or computed_step_s(manifest, place, weight)
    work = exchange_work(manifest, weight, shape.num_sites)
    exchange = exchange_cost(work, place.link)
    steps = strategy.inner_steps
    one = pace(Cadence(steps, extension(manifest), step_s, exchange.total_s, strategy.delay))
    sent = bytes_each_way(weight.payload_bytes, shape.num_sites, is_gathered=work.is_gathered)
    # A phase that was extended, or waits, is no staler than one that the exchange fills.
    staleness = min(1.0, exchange.total_s / (one.steps * step_s))
    choice = StudyRow(
        strategy.delay, strategy.codec, strategy.transform, manifest.inner.optimizer, one.steps, staleness
    )
    return Plan(
        footprint=weight,
        step_s=step_s,
        exchange=exchange,
        pace=one,
        tokens_per_s=shape.num_sites * manifest.tokens_per_inner_step * one.steps / one.round_s,
        bytes_each_way=sent,
        bytes_per_hour=sent * HOUR_S / one.round_s,
        bytes_per_day=sent * DAY_S / one.round_s,
        bytes_saved=bytes_saved(weight.parameters, steps, weight.payload_bytes),
        loss_gap_percent=loss_gap_percent(choice),
    )


def extension(manifest: Manifest) -> int:
    """Most steps by which a phase is lengthened while an exchange lasts."""
    strategy = manifest.strategy
    return strategy.extend_steps_max if strategy.late_policy == "extend" else 0


def computed_step_s(manifest: Manifest, place: Deployment, weight: Footprint) -> float:
    """Seconds of one inner step by arithmetic: forward and backward of all tokens, and the pipeline's bubble."""
    compute_s = weight.flops_per_token * manifest.tokens_per_inner_step / place.compute.flop_per_s
    shape = place.shape
    microbatches = shape.microbatches or manifest.inner.microbatches
    return pipeline_step_s(compute_s, shape.stages, microbatches, shape.slices_per_process)
