"""What a strategy costs in loss, from this project's own study and nothing else; docs/planning.md names its limits.

gap = 0.83 + tau/H + 0.12 log2(H/20) + what codec, transform and inner optimizer add: percent of validation loss above
per-step all-reduce with AdamW. Fitted to rows of docs/benchmarks.md; each row is met within 0.25 points.
"""

import math
from dataclasses import dataclass
from typing import Final

LIMITS: Final = (
    "from the study in docs/benchmarks.md: 1.08M parameters, four sites, 557k tokens, H of 14 to 127; nobody has shown"
    " that it holds for your model, and more sites cost more"
)
SITES_COST: Final = 0.83
"""Four sites with inner optimizers of their own, H = 20, fp32, no delay."""
STEPS_STUDIED: Final = 20
PER_DOUBLING_OF_H: Final = 0.12
MUON_GAIN: Final = -0.44
STREAMING_COST: Final = 1.05
TRANSFORM_COST: Final = {"identity": 0.0, "lowrank": 1.0, "mask": 3.8}
"""lowrank as studied: 24 of 192 columns; mask: one value of 16."""
CODEC_COST: Final = {"int2": 0.12, "topk": 2.7}
"""What is not named here lost nothing that the study can see."""


@dataclass(frozen=True, slots=True)
class StudyRow:
    """What of a strategy the study has rows for."""

    delay: str
    codec: str
    transform: str
    optimizer: str
    inner_steps: int
    staleness: float


def loss_gap_percent(choice: StudyRow) -> float:
    """Expected percent of validation loss above per-step all-reduce; LIMITS says what that is worth.

    A whole phase of delay costs as much as an exchange that takes a whole phase.

    >>> round(loss_gap_percent(StudyRow("arrival", "int4", "identity", "adamw", 20, 0.2)), 2)
    1.03
    """
    staleness = {"none": 0.0, "phase": 1.0, "eager": 1.0}.get(choice.delay, choice.staleness)
    return (
        SITES_COST
        + staleness
        + PER_DOUBLING_OF_H * math.log2(choice.inner_steps / STEPS_STUDIED)
        + TRANSFORM_COST[choice.transform]
        + CODEC_COST.get(choice.codec, 0.0)
        + (MUON_GAIN if choice.optimizer == "muon" else 0.0)
        + (STREAMING_COST if choice.delay == "streaming" else 0.0)
    )
