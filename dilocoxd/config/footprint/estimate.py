"""Decides how much memory and disk a run wants of a site: the one place for what anything costs. Pure.

`site_estimate` counts by formula and answers before torch is loaded; the planner counts from the plan that trains and
asks `estimate` the same. docs/planning.md has the formulas and what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dilocoxd.config.footprint.counts import Counts, Slice, counted
from dilocoxd.config.footprint.shape import SiteShape, shape_of
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.schedules import SliceOrder
from dilocoxd.config.site import SiteConfig

FLOAT_BYTES: Final = 4
NARROW_BYTES: Final = 2
"""Of a parameter that is gathered with parallel.traffic = bfloat16."""
DAEMON_BYTES: Final = 200 << 20
"""Daemon and p2pd together after 200 rounds (docs/lab/benchmarks.md)."""
PROCESS_BYTES: Final = 250 << 20
"""A worker process before it holds any parameter: interpreter and torch (docs/lab/benchmarks.md)."""
PROCESSES_BYTES: Final = DAEMON_BYTES + 2 * PROCESS_BYTES
"""All processes of a site with one trainer, without a model."""
PARAMETER_BYTES: Final = {"adamw": 24, "muon": 20}
"""In a trainer, on the GPU if there is one: parameter, gradient, moments, anchor of the phase, copy for evaluations;
muon has one moment less."""
TIED_COPY_BYTES: Final = 2 * FLOAT_BYTES
"""Of a value of the embedding that the last stage of a pipeline has a copy of: it and its gradient (models/tied.py)."""
OVERLAY_BYTES: Final = 16
"""delay = eager keeps four more copies."""
VALUE_BYTES: Final = {"float32": 4, "bfloat16": 3}
"""Of an activation: in 16 bits about half of them stay fp32, those of norms and of the residual stream."""
HOLES: Final = 1.4
"""On a CPU activations take so much more than what is kept: blocks that the allocator cannot give back."""
LOGITS_BYTES: Final = 3 * FLOAT_BYTES
"""For each logit: it, its log softmax and its gradient."""
PAYLOADS_KEPT: Final = 64
"""The log never drops the payloads of fewer entries (site.toml, storage)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes."""

    outer_worker_bytes: int
    trainer_bytes: int
    """Of the fullest stage: what its GPU must hold."""
    copies_bytes: int
    """Main memory that the copies of the model take: less cannot work."""
    node_bytes: int
    """Main memory of everything on the machine of the daemon; with GPUs, what stays in main memory."""
    state_bytes: int
    """A snapshot."""
    disk_bytes: int


def site_estimate(manifest: Manifest, site: SiteConfig | None) -> Estimate:
    """Of the run at this site, counted by formula; `site` None: at a site whose site.toml says nothing."""
    shape = shape_of(manifest, site)
    return estimate(manifest, shape, counted(manifest, shape))


def estimate(manifest: Manifest, shape: SiteShape, counts: Counts) -> Estimate:
    """Of the run at a site of `shape`."""
    numel, payload = counts.parameters, counts.payload_bytes
    state = FLOAT_BYTES * numel * (1 + counts.num_slots) + counts.memory_bytes
    # Buffers take memory where they are written: an INBOX slot, the owner's feedback and what one contribution did only
    # in the segments that are summed here. The latter stays until the next entry is settled, so beside its INBOX.
    summed_here = 1.0 if manifest.is_gathered else 1 / shape.num_sites
    is_left_out = shape.leaves_out and manifest.data.evaluate_every_rounds > 0
    copies = 3 + counts.num_slots + (1 / shape.num_sites if manifest.has_owner_feedback else 0)
    copies += summed_here if is_left_out else 0
    payloads = 2 + (shape.num_sites - 1) * summed_here
    outer_copies = round(copies * FLOAT_BYTES * numel)
    outer_worker = outer_copies + round(payloads * payload) + counts.memory_bytes + shape.outer_parts * PROCESS_BYTES
    held = [held_bytes(manifest, one, shape) for one in counts.slices]
    passing = [activation_bytes(manifest, one, index, shape) for index, one in enumerate(counts.slices)]
    stages = range(shape.stages)
    order = SliceOrder(shape.schedule, shape.stages, shape.slices_per_process)
    trainers = [sum(held[index] + passing[index] for index in order.slices(rank)) for rank in stages]
    here = shape.stages_here * shape.slices_per_process if shape.stages_away else len(held)
    held_here, passing_here = sum(held[:here]), sum(passing[:here])
    of_trainers = 0 if shape.on_gpu else shape.in_stage * (held_here + round(HOLES * passing_here))
    processes = shape.stages_here * shape.in_stage
    entries = max(PAYLOADS_KEPT, manifest.snapshot.keep * manifest.snapshot.every_rounds)
    moments = 2 * FLOAT_BYTES * numel
    return Estimate(
        outer_worker_bytes=outer_worker,
        trainer_bytes=max(trainers),
        copies_bytes=outer_copies + (0 if shape.on_gpu else shape.in_stage * held_here),
        node_bytes=DAEMON_BYTES + outer_worker + of_trainers + processes * PROCESS_BYTES,
        state_bytes=state,
        # One snapshot and one checkpoint of the trainers are written while their predecessors still exist.
        disk_bytes=(manifest.snapshot.keep + 1) * state + entries * payload + 2 * moments,
    )


def held_bytes(manifest: Manifest, one: Slice, shape: SiteShape) -> int:
    """What a process keeps of a slice from step to step, and parameters and gradients that are whole for a while."""
    overlay = OVERLAY_BYTES if manifest.strategy.delay == "eager" else 0
    each = PARAMETER_BYTES[manifest.inner.optimizer] + overlay
    trained = one.trained - one.matrices + one.matrices // shape.tensor
    copied = one.copied // shape.tensor
    held = (each * trained + FLOAT_BYTES * one.frozen + TIED_COPY_BYTES * copied) // shape.shard
    if shape.readers == 1:
        return held
    numel = trained + one.frozen + copied
    # Of a stage of a pipeline all is whole for a while, else two blocks.
    whole = numel if shape.stages > 1 else min(numel, 2 * numel // max(1, one.layers))
    return held + (FLOAT_BYTES + (NARROW_BYTES if shape.is_narrow else FLOAT_BYTES)) * whole


def activation_bytes(manifest: Manifest, one: Slice, index: int, shape: SiteShape) -> int:
    """What passes through a slice in each step: activations of the microbatches in flight, and logits of one."""
    model, inner = manifest.model, manifest.inner
    microbatches = shape.microbatches or inner.microbatches
    tokens = max(1, (shape.batch_sequences or inner.batch_sequences) // shape.readers // microbatches) * model.seq_len
    in_flight = _in_flight(shape, microbatches, index)
    block = VALUE_BYTES[shape.dtype or inner.dtype] * _block_values(manifest, shape)
    positions = shape.tensor if shape.is_sequence_cut else 1
    if shape.is_checkpointed:
        of_blocks = in_flight * one.layers * FLOAT_BYTES * model.hidden_size // positions + block
    else:
        of_blocks = in_flight * one.layers * block
    with_logits = min(tokens, shape.loss_chunk_tokens or tokens) if one.is_last else 0
    return tokens * of_blocks + with_logits * LOGITS_BYTES * -(-model.vocab_size // shape.tensor)


def _in_flight(shape: SiteShape, microbatches: int, index: int) -> int:
    """Microbatches of which a slice keeps activations at once, by the order of torch.distributed.pipelining."""
    if shape.stages == 1:
        return 1  # without a pipeline each goes back before the next one comes
    if shape.schedule == "gpipe":
        return microbatches
    if shape.schedule == "zbvzerobubble":
        # Of both slices of a process together twice as many as there are processes: most on the way down.
        return min(microbatches, 2 * shape.stages - index)
    if shape.schedule == "interleavedzerobubble":
        return min(microbatches, shape.stages)  # on average over the slices of a process
    if shape.slices_per_process == 1:
        return min(microbatches, shape.stages - index)
    # Of all slices of a process together; the first backward pass waits for the last slice of the last process.
    ahead = (shape.slices_per_process - 1) * shape.stages + 2 * (shape.stages - 1 - index % shape.stages) + 1
    return min(microbatches, -(-ahead // shape.slices_per_process))


def _block_values(manifest: Manifest, shape: SiteShape) -> int:
    """What the backward pass of a LLaMA-shaped block keeps for each token; the attention matrix is never stored.

    Two norms keep three values each for a unit of width (their input, it scaled, their output), attention its queries
    and its result, the feed-forward part four for a unit of its own width. Of tensor parallel layers each process has
    some of the heads and units, and the norms whole; with positions cut of the norms only what goes into the matrices.
    """
    model, tensor = manifest.model, shape.tensor
    kv = model.hidden_size * model.num_kv_heads // model.num_heads
    of_norms = 2 * model.hidden_size + 4 * model.hidden_size // (tensor if shape.is_sequence_cut else 1)
    return of_norms + (2 * model.hidden_size + 2 * kv + 4 * model.intermediate_size) // tensor
