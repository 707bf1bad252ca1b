"""Everything the outer worker derives from the manifest: layout, codec, optimizer, sizes of the shared buffers."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property, partial

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.fragments import Fragments
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.mask import RandomMask
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import Identity, Transform
from dilocoxd.config.manifest import Manifest
from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.outer.schedule import Adaptive, AdaptiveLimits, Constant, Qsr, Schedule, cosine_rate
from dilocoxd.outerworker.journal import JOURNAL_BYTES
from dilocoxd.wire import local
from dilocoxd.wire.layout import Layout, Segment, make_layout
from dilocoxd.wire.local import Buffer, Described, PayloadTable

Table = tuple[tuple[int, ...], ...]

FLOAT_BYTES = 4
HEADER_BYTES = 1024
"""Of one header in MEMORY (outerworker/memory.py)."""


@dataclass(frozen=True)
class Plan:
    """One run as the outer worker sees it. Equal manifests give equal plans."""

    manifest: Manifest
    layout: Layout
    transform: Transform
    feedback: ErrorFeedback
    optimizer: OuterOptimizer
    schedule: Schedule

    @cached_property
    def run_id(self) -> str:
        return self.manifest.run_id

    @cached_property
    def sha256(self) -> bytes:
        """Names run and layout, so that foreign buffers and files are recognised."""
        cuts = [[segment.start, segment.stop] for segment in self.layout.segments]
        names = [[param.name, param.shape] for param in self.layout.params]
        return hashlib.sha256(self.manifest.sha256() + json.dumps([names, cuts]).encode()).digest()

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.layout.segments

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
        return max(segment.numel for segment in self.segments)

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
            found[lowrank_r] = self.transform.payload_table()
        return found

    @cached_property
    def _offset_tables(self) -> dict[int, Table]:
        width = len(self.segments)
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

    @property
    def payload_bytes(self) -> Table:
        """[pass][segment] at the low rank that the run starts with."""
        return self.payload_bytes_at(self.schedule.start.lowrank_r)

    @property
    def payload_offsets(self) -> Table:
        return self.payload_offsets_at(self.schedule.start.lowrank_r)

    @cached_property
    def payload_total(self) -> int:
        """Size of OUTBOX, RESULT and one INBOX slot: room for any low rank."""
        return max(sum(map(sum, table)) for table in self.payload_tables.values())

    @cached_property
    def has_memory(self) -> bool:
        """The shared state holds more than parameters and optimizer (outerworker/memory.py)."""
        return self.transform.has_memory or not isinstance(self.schedule, Constant)

    def memory_bytes(self, segment: Segment) -> int:
        """Room for what the next round needs of a segment's result."""
        return self._memory_bytes[segment.index]

    @cached_property
    def _memory_bytes(self) -> tuple[int, ...]:
        if not self.transform.has_memory:
            return (0,) * len(self.segments)
        return tuple(max(lengths) for lengths in zip(*(t[-1] for t in self.payload_tables.values()), strict=True))

    @property
    def memory_total(self) -> int:
        """Size of MEMORY."""
        return 2 * HEADER_BYTES + sum(self._memory_bytes) if self.has_memory else 0

    @property
    def num_inbox_slots(self) -> int:
        return self.manifest.round.peers_max

    def described(self) -> Described:
        """What the daemon must create, and the lengths it moves."""
        floats = self.layout.numel * FLOAT_BYTES
        sizes = {
            local.ANCHOR: floats,
            local.MOMENTUM: floats * self.num_slots,
            local.PHASE: floats,
            local.FEEDBACK: floats,
            local.OWNER_FEEDBACK: floats,
            local.MEMORY: self.memory_total,
            local.UNDO: self.segment_numel_max * FLOAT_BYTES * max(2, 1 + self.num_slots),
            local.JOURNAL: JOURNAL_BYTES,
            local.OUTBOX: self.payload_total,
            local.INBOX: self.payload_total * self.num_inbox_slots,
            local.RESULT: self.payload_total,
        }
        buffers = tuple(Buffer(name, size) for name, size in sizes.items() if size)
        tables = tuple(PayloadTable(lowrank_r, table) for lowrank_r, table in self.payload_tables.items())
        return Described(self.layout.numel, buffers, tables)


def make_plan(manifest: Manifest) -> Plan:
    """The plan of a run. Raises ConfigError for a manifest that no site can follow."""
    strategy, outer = manifest.strategy, manifest.outer
    model = ModelConfig(**manifest.model.model_dump())
    layout = make_layout(param_specs(model), strategy.segment_elements_max)
    return Plan(
        manifest,
        layout,
        _transform(manifest, layout),
        ErrorFeedback(strategy.error_feedback, strategy.ef_beta),
        outer_from_name(outer.optimizer, outer.lr, outer.momentum),
        make_schedule(manifest),
    )


def _transform(manifest: Manifest, layout: Layout) -> Transform:
    strategy = manifest.strategy
    options = {"k": strategy.topk} if strategy.codec == "topk" else {}
    codec = codec_from_name(strategy.codec, **options)
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
            return Identity(layout, codec)


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
