"""How fast a run goes when its steps and its exchange take so long: rounds, staleness, idle time, tokens.

Pure arithmetic; formulas and the table of the DiLoCoX paper that they reproduce: docs/planning.md.
"""

import math
from dataclasses import dataclass

FP32_BITS = 32
OUTER_NS = 50
"""CPU time of the outer worker for a parameter and round: 20M a second (docs/cluster.md, The outer worker in parts)."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """What decides how long a round lasts. Seconds; `delay` as in run.toml."""

    inner_steps: int
    extend_steps_max: int
    step_s: float
    exchange_s: float
    delay: str


@dataclass(frozen=True, slots=True)
class RoundUse:
    """One round of one site. `staleness` is tau / H: the part of a phase that the exchange takes."""

    round_s: float
    steps: int
    idle_s: float
    staleness: float
    utilisation: float


def pace(cadence: Cadence) -> RoundUse:
    """Length and use of a round.

    Without delay the trainers wait for the exchange. With any other they go on, the phase is extended while the
    exchange lasts, at most by `extend_steps_max` steps, and only then they wait.
    """
    planned_s = cadence.inner_steps * cadence.step_s
    steps, exchange_s = cadence.inner_steps, cadence.exchange_s
    if cadence.delay == "none":
        round_s = planned_s + exchange_s
    else:
        needed = math.ceil(exchange_s / cadence.step_s - 1e-9)
        steps = min(max(steps, needed), steps + cadence.extend_steps_max)
        round_s = max(steps * cadence.step_s, exchange_s)
    busy_s = steps * cadence.step_s
    return RoundUse(round_s, steps, round_s - busy_s, exchange_s / planned_s, busy_s / round_s)


def outer_part_s(parameters: int, outer_parts: int) -> float:
    """Seconds of a core that each of so many outer parts computes in a round; they work at the same time."""
    return parameters * OUTER_NS / 1e9 / outer_parts


def bytes_saved(parameters: int, inner_steps: int, payload_bytes: int) -> float:
    """How many times fewer bytes than all-reducing fp32 gradients after every step."""
    return FP32_BITS / 8 * parameters * inner_steps / payload_bytes


def pipeline_step_s(compute_s: float, stages: int, microbatches: int, slices_per_process: int = 1) -> float:
    """Seconds of a step whose work, spread evenly over all stages, takes `compute_s`: with the pipeline's bubble.

    >>> pipeline_step_s(1.0, 4, 6)
    1.5
    """
    return compute_s * (microbatches + (stages - 1) / slices_per_process) / microbatches
