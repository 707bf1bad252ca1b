"""Everything the outer worker derives from the manifest: layout, codec, optimizer, sizes of the shared buffers."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.fragments import Fragments
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.mask import RandomMask
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.config.footprint.counts import model_parameters
from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.outer.clipping import CENTERED_KAPPA, ClipRule, record_bytes
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.on_gpu import OnGpu
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.outer.schedule import Adaptive, AdaptiveLimits, Constant, Qsr, Schedule, cosine_rate
from dilocoxd.outerworker.journal import JOURNAL_BYTES
from dilocoxd.store.snapshots import CHUNK_BYTES, FILE_BYTES_MAX, chunks_max
from dilocoxd.wire.clip_record import NORMS_KEPT, NUMBER_BYTES
from dilocoxd.wire.layout import Layout, Segment, make_layout
from dilocoxd.wire.limits import RESULT_HASHES_MAX, SEGMENTS_MAX
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.buffers import Buffer, PayloadTable
from dilocoxd.wire.local.figures import FIGURES_BYTES
from dilocoxd.wire.local.left_out import LEFT_OUT_BYTES
from dilocoxd.wire.local.outer_worker import Described
from dilocoxd.wire.placement import WHOLE, OuterPart, place

Table = tuple[tuple[int, ...], ...]

FLOAT_BYTES = 4
_TOLD_TIMES, _TOLD_ROOM = 4, 1 << 26
"""A model may have so many times the parameters that its sizes tell: heads may be wider than they say."""
HEADER_BYTES = local_buffers.HEADER_BYTES


@dataclass(frozen=True)
class OuterPlan:
    """One run as the outer worker sees it. Equal manifests give equal plans."""

    manifest: Manifest
    layout: Layout
    transform: Transform
    feedback: ErrorFeedback
    optimizer: OuterOptimizer
    schedule: Schedule
    part: OuterPart = WHOLE
    """Of the site's outer state, that this process holds."""

    @cached_property
    def run_id(self) -> str:
        return self.manifest.run_id

    @cached_property
    def sha256(self) -> bytes:
        """Names run and layout, so that foreign buffers and files are recognised."""
        cuts = [[segment.start, segment.stop] for segment in self.layout.segments]
        names = [[param.name, param.shape] for param in self.layout.params]
        return hashlib.sha256(self.manifest.sha256() + json.dumps([names, cuts]).encode()).digest()

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Of this part, a stretch of the layout's; tables, files and buffers name and hold all of the layout's."""
        return place(self.layout.segments, self.part.num_parts)[self.part.index]

    @cached_property
    def segments_here(self) -> tuple[Segment, ...]:
        """Of all parts on this machine."""
        dealt = place(self.layout.segments, self.part.num_parts)
        return tuple(itertools.chain.from_iterable(dealt[part] for part in self.part.here))

    def holds(self, segment: int) -> bool:
        """The segment of this number is one of this part."""
        return bool(self.segments) and self.segments[0].index <= segment <= self.segments[-1].index

    @property
    def stretch(self) -> tuple[int, int]:
        """Values [start, stop) of this part's segments."""
        return (self.segments[0].start, self.segments[-1].stop) if self.segments else (0, 0)

    @property
    def num_segments(self) -> int:
        """Of the whole layout."""
        return len(self.layout.segments)

    @property
    def age_decay(self) -> float:
        """What a contribution loses per round that it is later than `age_expected`."""
        return self.manifest.strategy.age_decay

    @property
    def age_expected(self) -> int:
        """Rounds between base and round of a contribution that is not late."""
        if self.keeps_progress:
            return self.manifest.strategy.fragments - 1  # so long its fragment's anchor has not moved
        return 1 if self.manifest.strategy.delay in ("phase", "eager") else 0

    @property
    def keeps_progress(self) -> bool:
        """What a contribution did not bring in stays in the trainers' parameters, and must not be offered again."""
        return self.manifest.strategy.delay == "streaming"

    @property
    def num_slots(self) -> int:
        """Optimizer state buffers per parameter."""
        return self.optimizer.num_slots

    @cached_property
    def segment_numel_max(self) -> int:
        return max(segment.numel for segment in self.layout.segments)

    @property
    def num_passes(self) -> int:
        """Passes of an exchange."""
        return self.transform.num_passes

    @cached_property
    def payload_tables(self) -> dict[int, Table]:
        """By low rank: [pass][segment] length of a payload."""
        found = {}
        for lowrank_r in self.schedule.lowrank_levels:
            self.transform.tune(0, lowrank_r)
            *before, last = self.transform.payload_table()
            found[lowrank_r] = (*before, tuple(length + self.record_bytes for length in last))
        return found

    @cached_property
    def record_bytes(self) -> int:
        """Of the record behind each payload of the last pass (outer/clipping.py); zeros behind a contribution."""
        return record_bytes(self.manifest.round.peers_max) if self.clip_kappa else 0

    @property
    def clip_kappa(self) -> float:
        """Median norms that one share may have; 0: nothing is clipped."""
        aggregation = self.manifest.aggregation
        if aggregation.centered_clip:
            return CENTERED_KAPPA
        return aggregation.clip_kappa if aggregation.norm_clip else 0.0

    @property
    def is_centered(self) -> bool:
        """Distances from the last result are clipped."""
        return self.manifest.aggregation.centered_clip

    @property
    def drops_contrary(self) -> bool:
        """Shares that point against the others are not counted."""
        return self.manifest.aggregation.drop_contrary and self.clip_kappa > 0

    def clip_rule(self, center: Tensor | None) -> ClipRule:
        """What is clipped and left out; `center`: float32 of the whole segment, with centered clipping."""
        return ClipRule(self.clip_kappa, center, self.drops_contrary)

    def record_bytes_of(self, pass_index: int) -> int:
        """Of the record behind a payload of this pass."""
        return self.record_bytes if pass_index == self.num_passes - 1 else 0

    @cached_property
    def _offset_tables(self) -> dict[int, Table]:
        width = self.num_segments
        found = {}
        for lowrank_r, table in self.payload_tables.items():
            starts = list(itertools.accumulate(itertools.chain(*table), initial=0))
            found[lowrank_r] = tuple(tuple(starts[width * p : width * (p + 1)]) for p in range(self.num_passes))
        return found

    def payload_bytes_at(self, lowrank_r: int) -> Table:
        """[pass][segment] length of a payload of an entry with this low rank."""
        return self.payload_tables[lowrank_r]

    def payload_offsets_at(self, lowrank_r: int) -> Table:
        """[pass][segment] where such a payload starts in OUTBOX, RESULT and an INBOX slot: back to back."""
        return self._offset_tables[lowrank_r]

    @cached_property
    def payload_total(self) -> int:
        """Size of OUTBOX, RESULT and one INBOX slot: room for any low rank."""
        return max(sum(map(sum, table)) for table in self.payload_tables.values())

    @cached_property
    def has_memory(self) -> bool:
        """The shared state holds more than parameters and optimizer (outerworker/schedule_memory.py)."""
        return self.keeps_results or self.clip_kappa > 0 or not isinstance(self.schedule, Constant)

    @property
    def keeps_results(self) -> bool:
        """The next entry starts from the last one's results."""
        return self.transform.has_memory or self.is_centered

    @property
    def norms_bytes(self) -> int:
        """Of the memory of norms at the end of each segment's region: one number for each of the last entries."""
        return NORMS_KEPT * NUMBER_BYTES if self.clip_kappa else 0

    def memory_bytes(self, segment: Segment) -> int:
        """Room for what the next round needs of a segment's result, and for norms."""
        return self._memory_bytes[segment.index] + self.norms_bytes

    @cached_property
    def _memory_bytes(self) -> tuple[int, ...]:
        if not self.keeps_results:
            return (0,) * self.num_segments
        return tuple(max(lengths) for lengths in zip(*(t[-1] for t in self.payload_tables.values()), strict=True))

    @property
    def memory_total(self) -> int:
        """Size of MEMORY."""
        regions = sum(self._memory_bytes) + self.num_segments * self.norms_bytes
        return 2 * HEADER_BYTES + regions if self.has_memory else 0

    @property
    def is_gathered(self) -> bool:
        """Every site sums all contributions itself."""
        return self.manifest.is_gathered

    @property
    def has_owner_feedback(self) -> bool:
        """An owner keeps what it loses when it encodes a mean."""
        return self.manifest.has_owner_feedback

    @property
    def gain(self) -> float:
        """How far an outer step goes along one unit of its entry's mean; 0: that depends on more than that unit."""
        outer = self.manifest.outer
        gains = {"sgd": 1.0, "heavy_ball": 1.0, "nesterov": 1.0 + outer.momentum}
        return outer.lr * gains.get(outer.optimizer, 0.0)

    @property
    def has_left_out(self) -> bool:
        """What one contribution did to the held-out loss may be measured."""
        return self.manifest.data.evaluate_every_rounds > 0

    @property
    def left_out_marks(self) -> int:
        """Bytes behind the values of LEFT_OUT (wire/local/left_out.py)."""
        return LEFT_OUT_BYTES * self.part.num_parts

    @property
    def num_inbox_slots(self) -> int:
        return self.manifest.round.peers_max

    @property
    def undo_bytes(self) -> int:
        """Of one part: a segment of everything that one step changes in place."""
        return self.segment_numel_max * FLOAT_BYTES * max(2, 1 + self.num_slots)

    def described(self) -> Described:
        """What the daemon must create, and the lengths it moves."""
        floats = self.layout.numel * FLOAT_BYTES
        sizes = {
            local_buffers.ANCHOR: floats,
            local_buffers.MOMENTUM: floats * self.num_slots,
            local_buffers.PHASE: floats,
            local_buffers.FEEDBACK: floats,
            local_buffers.OWNER_FEEDBACK: floats if self.has_owner_feedback else 0,
            local_buffers.MEMORY: self.memory_total,
            local_buffers.LEFT_OUT: floats + self.left_out_marks if self.has_left_out else 0,
            local_buffers.UNDO: self.undo_bytes * self.part.num_parts,
            local_buffers.JOURNAL: JOURNAL_BYTES * self.part.num_parts,
            local_buffers.FIGURES: FIGURES_BYTES * self.num_segments,
            local_buffers.OUTBOX: self.payload_total,
            local_buffers.INBOX: self.payload_total * self.num_inbox_slots,
            local_buffers.RESULT: self.payload_total,
        }
        buffers = tuple(Buffer(name, size) for name, size in sizes.items() if size)
        tables = tuple(PayloadTable(lowrank_r, table) for lowrank_r, table in self.payload_tables.items())
        return Described(
            self.layout.numel,
            buffers,
            tables,
            self.record_bytes,
            2 * HEADER_BYTES * self.is_centered,
            tuple(segment.numel for segment in self.layout.segments),
        )


def make_plan(manifest: Manifest, part: OuterPart = WHOLE, device: torch.device | None = None) -> OuterPlan:
    """The plan of a run, of all or of one part of it; contributions are encoded on `device`, if one is given.

    Raises ConfigError for a manifest that no site can follow.
    """
    strategy, outer = manifest.strategy, manifest.outer
    model = ModelConfig.of_run(manifest)
    params = param_specs(model)
    numel = sum(param.numel for param in params)
    _check_told(manifest, numel)
    _check_messages(numel, numel // strategy.segment_elements_max, 1)  # before as many segments are made
    layout = make_layout(params, strategy.segment_elements_max)
    _check_messages(numel, len(layout.segments), 1)  # before the transform, which works on each segment
    transform = _transform(manifest, layout, device)
    _check_messages(numel, len(layout.segments), transform.num_passes)
    plan = OuterPlan(
        manifest,
        layout,
        transform,
        ErrorFeedback(strategy.error_feedback, strategy.ef_beta),
        outer_from_name(outer.optimizer, outer.lr, outer.momentum),
        make_schedule(manifest),
        part,
    )
    _check_snapshots(plan)
    return plan


def _check_snapshots(plan: OuterPlan) -> None:
    """Raise ConfigError for a state whose snapshots have more chunks than an index names."""
    floats = plan.layout.numel * FLOAT_BYTES
    size, room = floats * (1 + plan.num_slots) + plan.memory_total, chunks_max(plan.num_segments) * CHUNK_BYTES
    if size > room or floats * max(1, plan.num_slots) > FILE_BYTES_MAX - CHUNK_BYTES:
        raise ConfigError(
            f"{plan.layout.numel} parameters make a snapshot of {size / 1e9:.0f} GB, but it may have"
            f" {room / 1e9:.0f} GB, and each of its files {FILE_BYTES_MAX / 1e9:.0f} GB; train a smaller model"
        )


def _check_told(manifest: Manifest, numel: int) -> None:
    """Raise ConfigError for a config.json with fields that make the model far larger than its sizes say.

    Memory and disk are compared with what the sizes say, before a library reads the config.
    """
    told = model_parameters(manifest)
    if manifest.model.kind == "hf" and not manifest.lora.rank and numel > _TOLD_TIMES * told + _TOLD_ROOM:
        raise ConfigError(
            f"model.config makes {numel} parameters, and its sizes say about {told}; use the config.json of a known"
            " model, or widen that one by hidden_size, num_hidden_layers, intermediate_size or its experts"
        )


def _check_messages(numel: int, count: int, num_passes: int) -> None:
    """Raise ConfigError for more segments than the messages of a round can name."""
    if count > SEGMENTS_MAX or count * num_passes > RESULT_HASHES_MAX:
        raise ConfigError(
            f"{numel} parameters make {count} segments in {num_passes} passes, but the messages of a round"
            f" name at most {SEGMENTS_MAX} segments and {RESULT_HASHES_MAX} results; raise"
            " strategy.segment_elements_max"
        )


def _transform(manifest: Manifest, layout: Layout, device: torch.device | None) -> Transform:
    strategy = manifest.strategy
    options = {"k": strategy.topk} if strategy.codec == "topk" else {}
    codec = codec_from_name(strategy.codec, **options)
    if device is not None:
        codec = OnGpu(codec, device)
    match strategy.transform:
        case "lowrank":
            low_rank = LowRank(layout, strategy.lowrank_r, codec)
            if manifest.schedule.kind == "adaptive":
                low_rank.rank_eps = manifest.schedule.energy_left
            return Deferred(low_rank)
        case "mask":
            return Deferred(RandomMask(layout, codec, strategy.mask_keep_one_in, manifest.seeds.model))
        case "identity" if strategy.fragments:
            return Deferred(Fragments(layout, codec, strategy.fragments))
        case "identity":
            return NoTransform(layout, codec)


def make_schedule(manifest: Manifest) -> Schedule:
    """How low rank and inner steps of the run change. Raises ConfigError."""
    strategy, section, inner = manifest.strategy, manifest.schedule, manifest.inner
    match section.kind:
        case "constant" | "per_site":
            return Constant(strategy.lowrank_r, strategy.inner_steps)
        case "adaptive":
            limits = AdaptiveLimits(
                strategy.lowrank_r,
                strategy.inner_steps,
                section.window,
                section.lowrank_r_min,
                section.inner_steps_min,
                manifest.inner_steps_max,
                section.coupling,
            )
            return Adaptive(limits)
        case "qsr":
            rate = partial(cosine_rate, inner.lr, inner.min_lr_ratio, inner.total_steps)
            bounds = (strategy.inner_steps, section.inner_steps_min, manifest.inner_steps_max)
            return Qsr(strategy.lowrank_r, bounds, section.qsr_alpha, rate)
