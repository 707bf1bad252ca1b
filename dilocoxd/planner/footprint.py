"""What a run weighs at one site: parameters, payload, memory of each process, disk. From the same plan that trains.

Everything is counted here, from the plan; what it costs is said in config/footprint/estimate.py.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.config.footprint.counts import Counts, Slice
from dilocoxd.config.footprint.estimate import Estimate, estimate
from dilocoxd.config.footprint.loops import has_loops
from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.config.manifest import Manifest
from dilocoxd.machines.exchange.cost import ExchangeWork
from dilocoxd.models.build import build_stage
from dilocoxd.models.config import EXTERNAL_KIND, ModelConfig
from dilocoxd.models.cut import StageSpan, cut_stages, head_flops, layer_flops
from dilocoxd.models.params import param_specs
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.layout import ParamSpec, group_key


@dataclass(frozen=True, slots=True)
class Footprint(Estimate):
    """Counts and bytes. `factored_share`: part of the values that low rank factors; 1 for other transforms."""

    parameters: int
    payload_bytes: int
    num_passes: int
    num_segments: int
    factored_share: float
    flops_per_token: int


def footprint(manifest: Manifest, shape: SiteShape) -> Footprint:
    """What `manifest` weighs at a site of `shape`. Raises ConfigError when no site can follow it."""
    plan = make_plan(manifest)
    model = ModelConfig.of_run(manifest)
    spans = cut_stages(model, shape.stages * shape.slices_per_process, shape.layers)
    counts = Counts(
        slices=tuple(_slice(plan, span) for span in spans),
        payload_bytes=plan.payload_total,
        memory_bytes=plan.memory_total,
        num_slots=plan.num_slots,
    )
    return Footprint(
        **asdict(estimate(manifest, shape, counts)),
        parameters=plan.layout.numel,
        payload_bytes=plan.payload_total,
        num_passes=plan.num_passes,
        num_segments=len(plan.segments),
        factored_share=factored_share(plan),
        flops_per_token=6 * (model.num_layers * layer_flops(model) + head_flops(model)),
    )


def exchange_work(manifest: Manifest, weight: Footprint, num_sites: int) -> ExchangeWork:
    """What one exchange of this run moves between `num_sites` sites with codecs as compiled as here."""
    return ExchangeWork(
        parameters=weight.parameters,
        payload_bytes=weight.payload_bytes,
        num_segments=weight.num_segments,
        num_passes=weight.num_passes,
        codec=manifest.strategy.codec,
        num_sites=num_sites,
        is_gathered=manifest.is_gathered,
        is_compiled=has_loops(),
    )


def factored_share(plan: OuterPlan) -> float:
    """Part of all values that low rank sends as factors; the rest travels dense. 1 for other transforms."""
    transform = plan.transform.inner if isinstance(plan.transform, Deferred) else plan.transform
    if not isinstance(transform, LowRank):
        return 1.0
    dense = sum(transform.plan(segment).dense_numel for segment in plan.segments)
    return 1 - dense / plan.layout.numel


def _slice(plan: OuterPlan, span: StageSpan) -> Slice:
    whole = ModelConfig.from_section(plan.manifest.model)
    trained, frozen, copied = _stage_numel(plan.layout.params, span), 0, _tied_copy(whole, span)
    if plan.manifest.lora.rank:
        frozen, copied = _stage_numel(param_specs(whole), span) + copied, 0
    matrices = _stage_numel((param for param in plan.layout.params if len(param.shape) == 2), span)
    return Slice(trained, frozen, span.end_layer - span.first_layer, span.is_last, matrices, copied)


def _tied_copy(model: ModelConfig, span: StageSpan) -> int:
    """Values of the head of a last stage that are the embedding of the first one."""
    if span.is_first or not span.is_last or model.kind == EXTERNAL_KIND:
        return 0
    copy = build_stage(model, span, device=torch.device("meta")).borrowed_embedding()
    return copy.numel() if copy is not None else 0


def _stage_numel(params: Iterable[ParamSpec], span: StageSpan) -> int:
    def is_here(group: str) -> bool:
        last = group.rpartition(".")[2]
        if last.isdecimal():
            return span.first_layer <= int(last) < span.end_layer
        return span.is_first if "embed" in group else span.is_last

    if span.is_first and span.is_last:
        return sum(param.numel for param in params)  # whatever they are called: a module of somebody's own
    return sum(param.numel for param in params if is_here(group_key(param.name)))
