"""How far the run is, how fast, and how long it still takes: part of GET /v1/status."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from dilocoxd.answers.fields import Count, Ratio, Seconds, Speed, told


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpeeds:
    """Whether the stages of the pipeline here are equally fast."""

    compute_s: Annotated[
        tuple[Seconds, ...],
        told("Of an inner step, that each process along the pipeline computes: median of the newest steps."),
    ]
    faster_layers: Annotated[
        tuple[Count, ...],
        told("For parallel.layers_per_stage: with so many layers in each a step takes less; empty: not by much."),
    ]
    faster_saves: Annotated[Ratio | None, told("Part of an inner step that this would save; null without it.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Speed of this site and of the swarm, and the run's place on its schedule. null: not known."""

    steps_done: Annotated[
        Count | None, told("Inner steps that the shared model stands for: its place on the schedule.")
    ]
    steps_total: Annotated[
        Count,
        told("inner.total_steps of the run: there the learning rate is at its lowest, and training goes on."),
    ]
    eta_s: Annotated[
        Seconds | None,
        told("Until steps_total at the pace of the newest rounds; null before there is a pace, 0 behind it."),
    ]
    stop_after_tokens: Annotated[
        Count,
        told("run.stop_after_tokens: the run ends with so many in its entries; 0: when it is stopped."),
    ]
    end_s: Annotated[
        Seconds | None,
        told("Until the run ends, at the pace of the newest rounds; null: not known, or stop_after_tokens is 0."),
    ]
    round_s: Annotated[Seconds | None, told("Median time from one entry to the next, of the newest rounds.")]
    tokens_per_s: Annotated[Speed | None, told("Of this site; null while it does not train.")]
    swarm_tokens_per_s: Annotated[Speed | None, told("Of this site and of what the live peers say of themselves.")]
    swarm_tokens: Annotated[Count, told("Tokens in all entries of the chain.")]
    learning_rate: Annotated[Ratio | None, told("Of the newest inner step here.")]
    gradient_norm: Annotated[Ratio | None, told("Of the newest inner step here, before clipping.")]
    model_flops_per_s: Annotated[
        Speed | None,
        told(
            "6 x parameters x tokens/s of this site: its useful arithmetic, attention not counted, nor experts that a"
            " token does not use. With an adapter 6 for its parameters and 4 for those under it, whose gradients are"
            " not formed; null also for external models."
        ),
    ]
    mfu: Annotated[
        Ratio | None,
        told(
            "model_flops_per_s as part of what the devices could (site.device_flops_peak); null: one of both is not"
            " known."
        ),
    ]
    data_s: Annotated[
        Seconds | None,
        told(
            "What of an inner step here goes into reading its batch, in which nothing is computed: of the trainer that"
            " reads slowest, smoothed. null: no step yet, or a loop of your own."
        ),
    ]
    bubble: Annotated[
        Ratio | None,
        told(
            "Part of an inner step in which the trainers of a pipeline wait for other stages, mean over all, smoothed."
            " null without a pipeline."
        ),
    ]
    stages: Annotated[
        StageSpeeds | None,
        told(
            "What the stages compute, and which cut of the layers would be faster; null without a pipeline, and"
            " before the first dozen steps."
        ),
    ]
    skipped_steps: Annotated[
        Count, told("Inner steps here since this daemon started that changed nothing: a gradient was not finite.")
    ]
    memory_bytes: Annotated[
        Count | None, told("Main memory of all processes of this site; what they share is counted once.")
    ]
    rank_memory_bytes: Annotated[
        tuple[Count, ...],
        told("Of each trainer process: the most that its GPU held, or its main memory; empty before its first step."),
    ]
    sites: Annotated[Mapping[str, Count], told("How many sites do what, this one included: training, dead, ...")]
