"""The rows of the study: each preset is a configuration of the one engine.

Outer learning rate and momentum by delay class, carried over from an earlier prototype and not tuned here: `none` and
`arrival` 0.9/0.8 (0.7/0.9 for plain DiLoCo as published), whole-phase delay 0.4/0.6, sparse with feedback SGD 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import Identity, Transform
from dilocoxd.outer.feedback import ErrorFeedback, FeedbackMode
from dilocoxd.outer.phases import Delay
from dilocoxd.wire.layout import Layout

MakeTransform = Callable[[Layout], Transform]


def codec(name: str, **options: Any) -> MakeTransform:
    return lambda layout: Identity(layout, codec_from_name(name, **options))


def low_rank(lowrank_r: int, bits: int = 4) -> MakeTransform:
    return lambda layout: LowRank(layout, lowrank_r, codec_from_name("int4"), bits=8 if bits == 8 else 4)


@dataclass(frozen=True, slots=True)
class Preset:
    """`tau`: arrival or overlap as a fraction of the phase. `fragments` > 0: streaming. `is_adaptive`: AdaGradCmp."""

    transform: MakeTransform
    inner_steps: int = 20
    delay: Delay = "none"
    tau: float = 0.0
    optimizer: str = "nesterov"
    lr: float = 0.7
    momentum: float = 0.9
    feedback: FeedbackMode = "local"
    beta: float = 1.0
    fragments: int = 0
    alpha: float = 0.5
    inner: str = "adamw"
    is_adaptive: bool = False
    is_control: bool = False
    note: str = ""

    @property
    def error_feedback(self) -> ErrorFeedback:
        return ErrorFeedback(self.feedback, self.beta)


_FP32 = Preset(codec("fp32"), feedback="none")
_INT4 = Preset(codec("int4"), lr=0.9, momentum=0.8)
_ARRIVAL = replace(_INT4, delay="arrival", tau=0.2)
_SPARSE = Preset(codec("topk", k=64), optimizer="sgd", lr=1.0, momentum=0.0, beta=0.95)

ALL_REDUCE = "allreduce"
ALL_REDUCE_MUON = "allreduce-muon"
BASELINES = {ALL_REDUCE: "adamw", ALL_REDUCE_MUON: "muon"}

PRESETS: dict[str, Preset] = {
    "diloco-fp32": replace(_FP32, note="reference, 0.7/0.9"),
    "diloco-fp32-tuned": replace(_FP32, lr=0.9, momentum=0.8),
    "diloco-int8": Preset(codec("int8"), note="0.7/0.9"),
    "diloco-int4": _INT4,
    "diloco-int2": replace(_INT4, transform=codec("int2")),
    "arrival-0.05": replace(_ARRIVAL, tau=0.05),
    "arrival-0.2": _ARRIVAL,
    "arrival-0.5": replace(_ARRIVAL, tau=0.5, lr=1.0, momentum=0.6),
    "arrival-1": replace(_ARRIVAL, tau=1.0, lr=0.7, momentum=0.6),
    "arrival-int2-0.05": replace(_ARRIVAL, tau=0.05, transform=codec("int2")),
    "arrival-topk256-0.05": replace(_ARRIVAL, tau=0.05, transform=codec("topk", k=256)),
    "arrival-topk128-0.05": replace(_ARRIVAL, tau=0.05, transform=codec("topk", k=128)),
    "arrival-topk256-0.2": replace(_ARRIVAL, tau=0.2, transform=codec("topk", k=256)),
    "default": replace(_ARRIVAL, tau=0.05, transform=codec("topk", k=256), note="over 500x with full overlap"),
    "muon-int4": replace(_INT4, inner="muon"),
    "muon-arrival-0.05": replace(_ARRIVAL, tau=0.05, inner="muon"),
    "muon-arrival-int2-0.05": replace(_ARRIVAL, tau=0.05, transform=codec("int2"), inner="muon"),
    "muon-arrival-topk256-0.05": replace(_ARRIVAL, tau=0.05, transform=codec("topk", k=256), inner="muon"),
    "dilocox": Preset(low_rank(24), delay="phase", lr=0.4, momentum=0.6, note="naive delay, low rank + int4"),
    "dilocox-adaptive": Preset(low_rank(48), delay="phase", lr=0.4, momentum=0.6, is_adaptive=True, note="AdaGradCmp"),
    "dilocox-int4": Preset(codec("int4"), delay="phase", lr=0.4, momentum=0.6, note="naive delay, no low rank"),
    "dilocox-eager": Preset(codec("int4"), delay="eager", lr=0.7, momentum=0.6),
    "lowrank24": replace(_INT4, transform=low_rank(24), note="no delay"),
    "lowrank24-int8": replace(_INT4, transform=low_rank(24, 8), note="no delay"),
    "streaming": Preset(codec("e3m0"), fragments=3, tau=0.1, lr=0.4, momentum=0.9, feedback="none"),
    "streaming-int4": Preset(codec("int4"), fragments=3, tau=0.1, lr=0.9, momentum=0.8),
    "sparseloco": _SPARSE,
    "sparseloco-k256": replace(_SPARSE, transform=codec("topk", k=256)),
    "sparseloco-arrival": replace(_SPARSE, delay="arrival", tau=0.05),
    "control-topk-no-feedback": replace(_SPARSE, feedback="none", beta=1.0, is_control=True),
    "control-lowrank-no-feedback": replace(_INT4, transform=low_rank(8), feedback="none", is_control=True),
    "control-delay-sync-lr": Preset(codec("fp32"), delay="phase", feedback="none", is_control=True, note="0.7/0.9"),
}
