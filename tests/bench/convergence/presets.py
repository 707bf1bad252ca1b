"""The rows of the study: each preset is a configuration of the one engine.

A name may carry changes, `default@inner_steps=16,momentum=0.8`: that is how settings are tuned, and such rows are kept
beside the others. The inner lr is the best of the baseline; what it ends at is the best found for the baseline (0.1)
and for sites that are averaged at the end (0.3, with Muon 0.5). Outer settings: docs/benchmarks.md says which were
tried.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Literal

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.mask import RandomMask
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.outer.feedback import ErrorFeedback, FeedbackMode
from dilocoxd.wire.layout import Layout
from tests.reference.phases import Delay


@dataclass(frozen=True, slots=True)
class Preset:
    """`tau`: arrival or overlap as a fraction of the phase. `fragments` > 0: streaming. `is_adaptive`: AdaGradCmp.

    `min_lr_ratio`: what the inner rate ends at, as part of its peak. `qsr` > 0: the alpha of H =
    max(inner_steps, (alpha / inner rate)^2).

    `codec`: the name of a codec, `topk` with its k as `topk:256`. `lowrank` > 0: factors of that rank with `bits` bits.
    `mask` > 0: one value of so many is sent. `delay` "step" is per-step all-reduce; the outer loop's fields mean
    nothing to it.
    """

    codec: str = "int4"
    lowrank: int = 0
    bits: int = 4
    mask: int = 0
    inner_steps: int = 20
    delay: Delay = "none"
    tau: float = 0.0
    optimizer: str = "nesterov"
    lr: float = 1.0
    momentum: float = 0.0
    feedback: FeedbackMode = "local"
    beta: float = 1.0
    fragments: int = 0
    alpha: float = 0.5
    inner: Literal["adamw", "muon"] = "adamw"
    inner_lr: float = 3e-3
    min_lr_ratio: float = 0.3
    is_adaptive: bool = False
    qsr: float = 0.0
    is_control: bool = False
    is_per_step: bool = False
    note: str = ""

    @property
    def error_feedback(self) -> ErrorFeedback:
        return ErrorFeedback(self.feedback, self.beta)

    def transform(self, layout: Layout) -> Transform:
        """A fresh transform for one run."""
        name, _, k = self.codec.partition(":")
        codec = codec_from_name(name, k=int(k)) if k else codec_from_name(name)
        if self.mask:
            return RandomMask(layout, codec, self.mask)
        if self.lowrank:
            return LowRank(layout, self.lowrank, codec, bits=8 if self.bits == 8 else 4)
        return NoTransform(layout, codec)


def resolve(name: str) -> Preset:
    """The preset called `name`, with the changes after its @. Raises KeyError or ValueError."""
    base, _, changes = name.partition("@")
    preset = PRESETS[base]
    known = dataclasses.asdict(preset)
    values: dict[str, Any] = {}
    for change in filter(None, changes.split(",")):
        key, _, text = change.partition("=")
        values[key] = type(known[key])(text)
    return replace(preset, **values)


_STEP = Preset("fp32", inner_steps=1, is_per_step=True, feedback="none", min_lr_ratio=0.1)
_FP32 = Preset("fp32", feedback="none")
_INT4 = Preset("int4")
_ARRIVAL = replace(_INT4, delay="arrival", tau=0.2)
_PHASE = Preset("int4", delay="phase", lr=0.5)
_SPARSE = Preset("topk:64", optimizer="sgd", lr=1.0, momentum=0.0, beta=0.95)

ALL_REDUCE = "allreduce"
PRESETS: dict[str, Preset] = {
    ALL_REDUCE: replace(_STEP, note="the baseline"),
    "allreduce-muon": replace(_STEP, inner="muon"),
    "default": replace(_ARRIVAL, codec="int2", inner_steps=34, inner="muon", min_lr_ratio=0.5),
    "default-adamw": replace(_ARRIVAL, codec="int2", inner_steps=34, inner_lr=2e-3, note="its own best rate"),
    "qsr": replace(_ARRIVAL, codec="int2", inner_steps=20, qsr=1.35e-2, note="H rises as the inner rate falls"),
    "per-step-average": replace(_FP32, inner_steps=1, note="sanity: what separate Adam states cost"),
    "diloco-fp32": replace(_FP32, lr=0.7, momentum=0.9, note="as published"),
    "diloco-fp32-tuned": replace(_FP32, note="the limit of what a codec can reach at this H"),
    "diloco-int8": replace(_INT4, codec="int8", feedback="none"),
    "diloco-int4": _INT4,
    "diloco-int2": replace(_INT4, codec="int2"),
    "arrival-0.05": replace(_ARRIVAL, tau=0.05),
    "arrival-0.2": _ARRIVAL,
    "arrival-0.5": replace(_ARRIVAL, tau=0.5),
    "arrival-1": replace(_ARRIVAL, tau=1.0),
    "dilocox": replace(_PHASE, lowrank=24, note="naive delay, low rank + int4"),
    "dilocox-adaptive": replace(_PHASE, lowrank=48, is_adaptive=True, note="AdaGradCmp"),
    "dilocox-int4": replace(_PHASE, note="no low rank, as for OPT-1.3B"),
    "dilocox-eager": replace(_PHASE, delay="eager"),
    "streaming": Preset("e3m0", fragments=3, tau=0.1, lr=0.4, momentum=0.9, feedback="none"),
    "streaming-int4": Preset("int4", fragments=3, tau=0.1),
    "sparseloco": _SPARSE,
    "sparseloco-arrival": replace(_SPARSE, delay="arrival", tau=0.2),
    "muon-int4": replace(_INT4, inner="muon"),
    "arrival-lowrank5": replace(_ARRIVAL, lowrank=5, inner_steps=5),
    "arrival-mask16": replace(_ARRIVAL, mask=16, inner_steps=5),
    "lowrank24": replace(_INT4, lowrank=24, note="no delay"),
    "mask16-int4": replace(_INT4, mask=16, note="shared random mask"),
    "control-topk-no-feedback": replace(_SPARSE, feedback="none", beta=1.0, is_control=True),
    "control-lowrank-no-feedback": replace(_INT4, lowrank=24, feedback="none", is_control=True),
    "control-delay-sync-lr": replace(_FP32, delay="phase", lr=0.7, momentum=0.9, is_control=True),
}
