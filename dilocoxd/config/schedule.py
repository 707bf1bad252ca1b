"""Sections of run.toml that say how low rank and inner steps change during a run, and who sums."""

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


class ReductionSection(Section):
    """Who sums the contributions of a round, and what becomes of what the sum loses when it is encoded."""

    reducer: Annotated[
        Literal["scatter", "gather"],
        knob(
            "scatter: each segment has an owner, who sums it and sends the result to all; gather: everybody gets all"
            " contributions and sums them itself: nobody has to be trusted with a sum (arXiv 2508.15706).",
            unit="choice",
            cost="gather sends each contribution to all sites: sites / 2 times the bytes of scatter. For few sites, or"
            " small contributions such as topk.",
        ),
    ] = "scatter"
    owner_feedback: Annotated[
        Literal["kept", "none"],
        knob(
            "scatter: what an owner loses when it encodes the mean is kept by it and added to the next one, or"
            " forgotten. With none a result is a function of what contributors have sent, which anybody can compute"
            " again.",
            unit="choice",
            cost="kept: one more copy of the segments that a site owns, and nobody can check its sums; none: about 0.6%"
            " of the loss with codec = topk, nothing that could be measured with the others (docs/benchmarks.md).",
        ),
    ] = "kept"
    verify: Annotated[
        Literal["none", "after", "before_vote"],
        knob(
            "Sites sum random segments of each round again, from the contributions themselves, and compare with what"
            " the owner of the segment returned, bit by bit. after: once the entry is committed, so a lie is named and"
            " its evidence kept; before_vote: a site that finds a lie does not vote for the round, so it never counts."
            " Needs reducer = 'scatter', owner_feedback = 'none', strategy.transform = 'identity' and no fragments.",
            unit="choice",
            cost="verify_fraction times the contributions of a round, once more, to and from each site; before_vote"
            " also makes rounds longer by that time.",
        ),
    ] = "none"
    verify_fraction: Annotated[
        float,
        knob(
            "Part of the segments owned by others that a site checks in each round. A lie in one segment is found by"
            " one site within n rounds with probability 1 - (1 - f)^n.",
            unit="fraction",
            cost="high finds lies sooner and sends more.",
            gt=0,
            le=1,
        ),
    ] = 0.1
