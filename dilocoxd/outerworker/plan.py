"""Everything the outer worker derives from the manifest: layout, codec, optimizer, sizes of the shared buffers."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import Identity, Transform
from dilocoxd.config.agreement import StrategySection
from dilocoxd.config.manifest import Manifest
from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.outerworker.journal import JOURNAL_BYTES
from dilocoxd.wire import local
from dilocoxd.wire.layout import Layout, Segment, make_layout
from dilocoxd.wire.local import Buffer, Described

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Plan:
    """One run as the outer worker sees it. Equal manifests give equal plans."""

    manifest: Manifest
    layout: Layout
    transform: Transform
    feedback: ErrorFeedback
    optimizer: OuterOptimizer

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
        return 1 if self.manifest.strategy.delay == "phase" else 0

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
    def payload_bytes(self) -> tuple[tuple[int, ...], ...]:
        """[pass][segment] length of a payload."""
        return self.transform.payload_table()

    @cached_property
    def payload_offsets(self) -> tuple[tuple[int, ...], ...]:
        """[pass][segment] where a payload starts in OUTBOX, RESULT and an INBOX slot."""
        starts = list(itertools.accumulate(itertools.chain(*self.payload_bytes), initial=0))
        width = len(self.segments)
        return tuple(tuple(starts[width * index : width * (index + 1)]) for index in range(self.num_passes))

    @cached_property
    def payload_total(self) -> int:
        return sum(map(sum, self.payload_bytes))

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
            local.UNDO: self.segment_numel_max * FLOAT_BYTES * max(2, 1 + self.num_slots),
            local.JOURNAL: JOURNAL_BYTES,
            local.OUTBOX: self.payload_total,
            local.INBOX: self.payload_total * self.num_inbox_slots,
            local.RESULT: self.payload_total,
        }
        buffers = tuple(Buffer(name, size) for name, size in sizes.items() if size)
        return Described(self.layout.numel, buffers, self.payload_bytes)


def make_plan(manifest: Manifest) -> Plan:
    """The plan of a run. Raises ConfigError for a manifest that no site can follow."""
    strategy, outer = manifest.strategy, manifest.outer
    model = ModelConfig(**manifest.model.model_dump())
    layout = make_layout(param_specs(model), strategy.segment_elements_max)
    return Plan(
        manifest,
        layout,
        _transform(strategy, layout),
        ErrorFeedback(strategy.error_feedback, strategy.ef_beta),
        outer_from_name(outer.optimizer, outer.lr, outer.momentum),
    )


def _transform(strategy: StrategySection, layout: Layout) -> Transform:
    options = {"k": strategy.topk} if strategy.codec == "topk" else {}
    codec = codec_from_name(strategy.codec, **options)
    if strategy.transform == "lowrank":
        return LowRank(layout, strategy.lowrank_r, codec)
    return Identity(layout, codec)
