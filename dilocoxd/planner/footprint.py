"""What a run weighs at one site: parameters, payload, memory of each process, disk. From the same plan that trains.

Estimates of memory are sums of what is known to be held; docs/planning.md has the formula and what was measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.config.footprint import trainer_parameter_bytes
from dilocoxd.config.manifest import Manifest
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import StageSpan, cut_stages, head_flops, layer_flops
from dilocoxd.models.params import param_specs
from dilocoxd.outerworker.plan import FLOAT_BYTES, OuterPlan, make_plan
from dilocoxd.wire.layout import ParamSpec, group_key

PROCESS_BYTES: Final = 360 << 20
"""A worker process before it holds any parameter: torch (docs/benchmarks.md)."""
ACTIVATION_BYTES: Final = 34
"""Per token, layer and unit of hidden_size in 16 bits; twice that in fp32. Source: arXiv 2205.05198, eq. 1 without the
attention matrix, which is never stored."""
BLOCK_INPUT_BYTES: Final = 2
"""The same with activation checkpointing, where only what goes into a block is kept."""
PAYLOADS_KEPT: Final = 64
"""The log never drops the payloads of fewer entries (site.toml, storage)."""


@dataclass(frozen=True, slots=True)
class SiteShape:
    """How a site cuts the model, and among how many sites it is one."""

    stages: int
    """Processes of the pipeline."""
    microbatches: int
    num_sites: int
    slices_per_process: int = 1
    shard: int = 1
    """Processes that hold each stage in parts."""
    replicate: int = 1
    """Copies of all that."""
    batch_sequences: int = 0
    """Sequences of an inner step at this site; 0 is the run's number."""
    is_checkpointed: bool = False
    """Whether blocks are computed again in the backward pass."""

    @property
    def readers(self) -> int:
        """Processes of one stage; each has its part of the batch."""
        return self.shard * self.replicate


@dataclass(frozen=True, slots=True)
class Footprint:
    """Counts and bytes. `factored_share`: part of the values that low rank factors; 1 for other transforms."""

    parameters: int
    payload_bytes: int
    num_passes: int
    num_segments: int
    factored_share: float
    flops_per_token: int
    outer_worker_bytes: int
    trainer_bytes: int
    """Of the fullest stage: what its GPU must hold."""
    node_bytes: int
    """Everything, when all stages compute on one CPU node."""
    disk_bytes: int


def footprint(manifest: Manifest, shape: SiteShape) -> Footprint:
    """What `manifest` weighs at a site of `shape`. Raises ConfigError when no site can follow it."""
    plan = make_plan(manifest)
    model = ModelConfig.of_run(manifest)
    slices = [_slice_bytes(plan, span, shape) for span in cut_stages(model, shape.stages * shape.slices_per_process)]
    trainers = [sum(slices[first :: shape.stages]) for first in range(shape.stages)]
    outer_worker = _outer_worker_bytes(plan, shape.num_sites)
    return Footprint(
        parameters=plan.layout.numel,
        payload_bytes=plan.payload_total,
        num_passes=plan.num_passes,
        num_segments=len(plan.segments),
        factored_share=factored_share(plan),
        flops_per_token=6 * (model.num_layers * layer_flops(model) + head_flops(model)),
        outer_worker_bytes=outer_worker,
        trainer_bytes=max(trainers),
        node_bytes=outer_worker + shape.readers * (sum(trainers) + shape.stages * PROCESS_BYTES),
        disk_bytes=_disk_bytes(plan),
    )


def factored_share(plan: OuterPlan) -> float:
    """Part of all values that low rank sends as factors; the rest travels dense. 1 for other transforms."""
    transform = plan.transform.inner if isinstance(plan.transform, Deferred) else plan.transform
    if not isinstance(transform, LowRank):
        return 1.0
    dense = sum(transform.plan(segment).dense_numel for segment in plan.segments)
    return 1 - dense / plan.layout.numel


def _outer_worker_bytes(plan: OuterPlan, num_sites: int) -> int:
    # Buffers take memory where they are written: an INBOX slot and the owner's feedback only in our own segments.
    copies = 3 + plan.num_slots + (1 / num_sites if plan.has_owner_feedback else 0)
    payloads = 2 + (num_sites - 1) / (1 if plan.is_gathered else num_sites)
    held = copies * FLOAT_BYTES * plan.layout.numel + payloads * plan.payload_total
    return round(held) + plan.memory_total + PROCESS_BYTES


def _slice_bytes(plan: OuterPlan, span: StageSpan, shape: SiteShape) -> int:
    manifest = plan.manifest
    model, inner = manifest.model, manifest.inner
    numel = _stage_numel(plan.layout.params, span)
    frozen = 0
    if manifest.lora.rank:
        frozen = FLOAT_BYTES * _stage_numel(param_specs(ModelConfig.from_section(model)), span)
    microbatches = shape.microbatches or inner.microbatches
    tokens = max(1, (shape.batch_sequences or inner.batch_sequences) // shape.readers // microbatches) * model.seq_len
    in_flight = max(1, min(microbatches, shape.stages - span.stage_index))
    width = 2 if inner.dtype == "float32" else 1
    layers = span.end_layer - span.first_layer
    per_token = layers * ACTIVATION_BYTES
    if shape.is_checkpointed:
        per_token = layers * BLOCK_INPUT_BYTES
        recomputed = tokens * model.hidden_size * ACTIVATION_BYTES * width
    else:
        recomputed = 0
    activations = in_flight * tokens * model.hidden_size * per_token * width + recomputed
    logits = 2 * FLOAT_BYTES * tokens * model.vocab_size if span.is_last else 0
    held = (trainer_parameter_bytes(manifest) * numel + frozen) // shape.shard
    return held + _gathered_bytes(numel + frozen // FLOAT_BYTES, layers, shape) + activations + logits


def _gathered_bytes(numel: int, layers: int, shape: SiteShape) -> int:
    """Parameters and gradients that are whole for a while: of a stage of a pipeline all, else of two blocks."""
    if shape.readers == 1:
        return 0
    whole = numel if shape.stages > 1 else min(numel, 2 * numel // max(1, layers))
    return 2 * FLOAT_BYTES * whole


def _stage_numel(params: Iterable[ParamSpec], span: StageSpan) -> int:
    def is_here(group: str) -> bool:
        last = group.rpartition(".")[2]
        if last.isdecimal():
            return span.first_layer <= int(last) < span.end_layer
        return span.is_first if "embed" in group else span.is_last

    if span.is_first and span.is_last:
        return sum(param.numel for param in params)  # whatever they are called: a module of somebody's own
    return sum(param.numel for param in params if is_here(group_key(param.name)))


def _disk_bytes(plan: OuterPlan) -> int:
    snapshot = plan.manifest.snapshot
    state = FLOAT_BYTES * plan.layout.numel * (1 + plan.num_slots) + plan.memory_total
    entries = max(PAYLOADS_KEPT, snapshot.keep * snapshot.every_rounds)
    moments = 2 * FLOAT_BYTES * plan.layout.numel
    # One snapshot and one checkpoint of the trainers are written while their predecessors still exist.
    return (snapshot.keep + 1) * state + entries * plan.payload_total + 2 * moments
