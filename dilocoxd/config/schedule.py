"""Section of run.toml that says how low rank and inner steps change during a run."""

from typing import Annotated, Literal

from dilocoxd.config.fields import Section, knob


class ScheduleSection(Section):
    """Who decides the low rank and the inner steps of the next rounds: always the shared state, the same everywhere."""

    kind: Annotated[
        Literal["constant", "adaptive", "qsr", "per_site"],
        knob(
            "constant = strategy.lowrank_r and strategy.inner_steps for ever; adaptive = both follow the effective rank"
            " of the committed results (AdaGradCmp, arXiv 2506.21263); qsr = inner steps (qsr_alpha / inner lr)^2,"
            " more as the learning rate falls (arXiv 2310.14423); per_site = strategy.inner_steps at the site of median"
            " speed, fewer at slower ones, so that all reach the boundary together (arXiv 2606.11081).",
            unit="choice",
            cost="adaptive measures every result: r^3 operations per matrix and round.",
        ),
    ] = "constant"
    window: Annotated[
        int,
        knob(
            "adaptive: rounds in the mean of measured ranks; until so many are measured the start values hold. The"
            " authors use 5.",
            unit="rounds",
            cost="long reacts late, short follows noise.",
            ge=1,
            le=64,
        ),
    ] = 5
    energy_left: Annotated[
        float,
        knob(
            "adaptive: the effective rank is how many directions hold all but this part of a result's energy.",
            unit="fraction",
            cost="large cuts more and leaves more to the error feedback.",
            gt=0,
            lt=1,
        ),
    ] = 0.1
    coupling: Annotated[
        Literal["shrink", "grow", "none"],
        knob(
            "adaptive: inner steps fall with the low rank (shrink: exchanges stay hidden, least staleness), rise as it"
            " falls (grow: fewest bytes), or stay. The paper's operator is lost in the text found: two readings.",
            unit="choice",
            cost="shrink sends more often, grow lets sites drift.",
        ),
    ] = "shrink"
    lowrank_r_min: Annotated[
        int,
        knob(
            "adaptive: smallest low rank.", unit="columns", cost="small may cut what is still needed.", ge=1, le=65_536
        ),
    ] = 1
    inner_steps_min: Annotated[
        int,
        knob(
            "adaptive, qsr, per_site: fewest inner steps.", unit="inner steps", cost="few send often.", ge=1, le=100_000
        ),
    ] = 1
    inner_steps_max: Annotated[
        int,
        knob(
            "adaptive with grow, qsr: most inner steps; 0 is strategy.inner_steps.",
            unit="inner steps",
            cost="many let sites drift.",
            ge=0,
            le=100_000,
        ),
    ] = 0
    qsr_alpha: Annotated[
        float,
        knob(
            "qsr: inner steps are (qsr_alpha / inner learning rate)^2. The authors use 0.01 to 0.03 for AdamW.",
            unit="1",
            cost="large lets sites drift.",
            gt=0,
            le=1000,
        ),
    ] = 0.015
