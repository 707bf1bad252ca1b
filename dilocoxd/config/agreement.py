"""Sections of run.toml that say how sites agree: outer optimizer, strategy, rounds, snapshots."""

from typing import Annotated, Literal, Self

from pydantic import model_validator

from dilocoxd.config.fields import Section, knob

Delay = Literal["none", "phase", "eager", "arrival", "streaming"]
"""When the result of a round is applied: see `strategy.delay`."""


class OuterSection(Section):
    """The optimizer that turns mean pseudo-gradients into the next anchor. Source: arXiv 2311.08105."""

    optimizer: Annotated[
        Literal["nesterov", "sgd", "heavy_ball", "adam"],
        knob(
            "Outer optimizer.", unit="choice", cost="nesterov, heavy_ball: one more copy of the parameters; adam two."
        ),
    ] = "nesterov"
    lr: Annotated[
        float,
        knob(
            "How much of the mean progress is taken. Safe limits depend on momentum and strategy.delay.",
            unit="1/round",
            cost="too high diverges.",
            gt=0,
            le=4,
        ),
    ] = 0.7
    momentum: Annotated[
        float,
        knob("How long earlier rounds go on acting.", unit="1/round", cost="higher needs a lower lr.", ge=0, lt=1),
    ] = 0.9

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.optimizer == "sgd" and self.momentum != 0:
            raise ValueError(
                f"outer.momentum = {self.momentum} means nothing to outer.optimizer = 'sgd'; set it to 0 or choose"
                " 'nesterov'"
            )
        return self


class StrategySection(Section):
    """What is exchanged, how often, and when it is applied."""

    name: Annotated[
        str,
        knob("Label for people; nothing depends on it.", unit="text", cost="none.", min_length=1, max_length=64),
    ] = "dilocox"
    delay: Annotated[
        Delay,
        knob(
            "When a round's result is applied: none = wait for it (synchronous), phase = one phase later (DiLoCoX),"
            " eager = like phase, and the site's own newest progress at once (arXiv 2502.12996),"
            " arrival = at the first inner step after it arrives, keeping own progress,"
            " streaming = like arrival, but every round exchanges only one of `fragments` parts, which is mixed with"
            " own progress (arXiv 2501.18512).",
            unit="choice",
            cost="none idles while exchanging; phase learns a little less per token; eager keeps four more copies of"
            " the parameters in the trainers, and sites differ a little.",
        ),
    ] = "arrival"
    inner_steps: Annotated[
        int,
        knob(
            "H: inner steps of one phase. More means fewer bytes per token.",
            unit="inner steps",
            cost="sites drift further apart.",
            ge=1,
            le=100_000,
        ),
    ]
    late_policy: Annotated[
        Literal["extend", "wait"],
        knob(
            "What to do at a boundary while the previous round is not committed: extend trains on, wait waits.",
            unit="choice",
            cost="wait idles; extend lengthens phases.",
        ),
    ] = "extend"
    extend_steps_max: Annotated[
        int,
        knob(
            "Most inner steps a phase is lengthened by before the site waits.",
            unit="inner steps",
            cost="long phases drift further.",
            ge=0,
            le=100_000,
        ),
    ] = 50
    error_feedback: Annotated[
        Literal["local", "paper", "none"],
        knob(
            "What compression left is added to the next contribution: local = own rest, paper = against the mean.",
            unit="choice",
            cost="one more copy of the parameters in the outer worker; none loses it.",
        ),
    ] = "local"
    ef_beta: Annotated[
        float,
        knob("Part of the rest that is kept each round.", unit="fraction", cost="below 1 forgets.", ge=0, le=1),
    ] = 1.0
    age_decay: Annotated[
        float,
        knob(
            "What a late contribution (its base is older than the delay makes it) is scaled by for each round of"
            " lateness; 1 takes it as it is. Source: CGAD, arXiv 2605.09126.",
            unit="fraction/round",
            cost="low wastes the work of slow sites; high moves the model back towards where a late site started from.",
            gt=0,
            le=1,
        ),
    ] = 0.5
    participation_rounds: Annotated[
        int,
        knob(
            "A round with fewer contributors than the fullest of so many rounds before it makes only that part of a"
            " step, as if the missing ones had sent zeros: a site that trains alone for a while does not pull the model"
            " about. 0: always a whole step. Source: linear scaling rule, arXiv 1706.02677.",
            unit="rounds",
            cost="after sites have left for good, steps stay small for that many rounds; 0 lets the loss rise while"
            " most sites are cut off (docs/benchmarks.md, Soak under faults).",
            ge=0,
            le=256,
        ),
    ] = 64
    transform: Annotated[
        Literal["identity", "lowrank", "mask"],
        knob(
            "What is done to a pseudo-gradient before the codec; lowrank sends factors of matrices in two passes"
            " (PowerSGD, arXiv 1905.13727), mask sends one value of every mask_keep_one_in, another one each round"
            " (CocktailSGD, PMLR 202).",
            unit="choice",
            cost="one more round trip per exchange; lowrank costs three matrix products and loses more than int4 at the"
            " same bytes, mask delivers everything only over many rounds.",
        ),
    ] = "identity"
    lowrank_r: Annotated[
        int,
        knob(
            "Columns of the factors that transform = lowrank sends; matrices that would not shrink travel dense.",
            unit="columns",
            cost="bytes grow with it.",
            ge=0,
            le=65_536,
        ),
    ] = 0
    mask_keep_one_in: Annotated[
        int,
        knob(
            "Of how many values transform = mask sends one; positions come from the round's number and cost no bytes.",
            unit="values",
            cost="large needs many rounds to deliver everything.",
            ge=0,
            le=4096,
        ),
    ] = 0
    fragments: Annotated[
        int,
        knob(
            "Into how many parts delay = streaming cuts the parameters: each has its turn every so many rounds.",
            unit="fragments",
            cost="many need short phases; each part is exchanged every fragments x inner_steps steps.",
            ge=0,
            le=1024,
        ),
    ] = 0
    mix_alpha: Annotated[
        float,
        knob(
            "delay = streaming: how much of a site's own parameters stays when a fragment's anchor arrives; 0 takes the"
            " anchor, the authors use 0.5.",
            unit="fraction",
            cost="high lets sites drift, 0 forgets the steps that the exchange took.",
            ge=0,
            lt=1,
        ),
    ] = 0.5
    codec: Annotated[
        Literal["fp32", "fp16", "bf16", "int8", "int4", "int8bins", "e3m0", "int2", "topk"],
        knob(
            "Number format on the wire; of everything dense when transform is lowrank.",
            unit="choice",
            cost="fewer bits are less exact; see error_feedback.",
        ),
    ] = "int8"
    topk: Annotated[
        int,
        knob(
            "Values that codec = topk sends of every 4096.",
            unit="values",
            cost="bytes grow with it; few of them need many rounds to deliver everything.",
            ge=2,
            le=4096,
            multiple_of=2,
        ),
    ] = 64
    segment_elements_max: Annotated[
        int,
        knob(
            "Largest piece of the parameters with an owner of its own. Smaller spreads the work over more peers, larger"
            " lets low rank see whole matrices. 0: chosen from the model, about 1,000 segments; `dilocoxd start` writes"
            " the number here.",
            unit="elements",
            cost="each segment costs a hash and a header.",
            ge=0,
            le=1 << 26,
            multiple_of=4096,
        ),
    ] = 0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.late_policy == "extend" and self.extend_steps_max == 0 and self.delay != "none":
            raise ValueError(
                "strategy.extend_steps_max = 0 contradicts strategy.late_policy = 'extend'; set it to 1 or more, or"
                " choose 'wait'"
            )
        if (self.transform == "lowrank") != (self.lowrank_r > 0):
            raise ValueError(
                f"strategy.lowrank_r = {self.lowrank_r} does not fit strategy.transform = {self.transform!r}; give"
                " lowrank a lowrank_r of at least 1, and identity none"
            )
        if (self.transform == "mask") != (self.mask_keep_one_in > 0):
            raise ValueError(
                f"strategy.mask_keep_one_in = {self.mask_keep_one_in} does not fit strategy.transform ="
                f" {self.transform!r}; give mask a number of at least 1, and the others none"
            )
        if (self.delay == "streaming") != (self.fragments > 0):
            raise ValueError(
                f"strategy.fragments = {self.fragments} does not fit strategy.delay = {self.delay!r}; give streaming at"
                " least 1, and the others none"
            )
        if self.delay == "streaming" and (self.transform != "identity" or self.error_feedback != "none"):
            raise ValueError(
                f"strategy.delay = 'streaming' does not go with strategy.transform = {self.transform!r} and"
                f" strategy.error_feedback = {self.error_feedback!r}; use 'identity' and 'none'"
            )
        if self.delay != "streaming" and self.mix_alpha != 0.5:
            raise ValueError(
                f"strategy.mix_alpha = {self.mix_alpha} means nothing to strategy.delay = {self.delay!r}; remove it"
            )
        if self.error_feedback == "none" and self.ef_beta != 1.0:
            raise ValueError(
                f"strategy.ef_beta = {self.ef_beta} means nothing to strategy.error_feedback = 'none'; remove it"
            )
        return self


class RoundSection(Section):
    """How long sites wait for each other, and what they may claim."""

    quorum: Annotated[
        Literal["available", "majority"],
        knob(
            "available = whoever is there goes on; majority = more than half of the last 8 rounds' contributors must.",
            unit="choice",
            cost="available may fork while the network is split (healed later), majority stops instead.",
        ),
    ] = "available"
    final_depth: Annotated[
        int,
        knob(
            "Entries that follow one that no site leaves by itself any more, not even for a heavier branch; 0 = none.",
            unit="entries",
            cost="low asks an operator after short splits, high lets an insider rewrite more (ADR 32).",
            ge=0,
            le=1_000_000,
        ),
    ] = 64
    grace_factor: Annotated[
        float,
        knob(
            "After the first contribution is ready, wait for the others this part of the measured phase time.",
            unit="phases",
            cost="high waits long for the dead, low leaves slow sites out.",
            gt=0,
            le=10,
        ),
    ] = 0.75
    grace_min_s: Annotated[float, knob("Shortest grace.", unit="s", cost="see grace_factor.", gt=0, le=3600)] = 2.0
    grace_max_s: Annotated[float, knob("Longest grace.", unit="s", cost="see grace_factor.", gt=0, le=86_400)] = 120.0
    progress_timeout_s: Annotated[
        float,
        knob(
            "An attempt or a transfer without progress for this long is given up and tried again without who failed.",
            unit="s",
            cost="too short gives up on hiccups, too long waits for the dead.",
            gt=0,
            le=3600,
        ),
    ] = 10.0
    peers_max: Annotated[
        int,
        knob("Most sites in one round.", unit="sites", cost="bounds memory for what peers send.", ge=1, le=1024),
    ] = 64
    inner_steps_max: Annotated[
        int,
        knob(
            "Most inner steps one contribution may claim; 0 is inner_steps + extend_steps_max.",
            unit="inner steps",
            cost="high lets a liar weigh more.",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    tokens_max: Annotated[
        int,
        knob(
            "Most tokens one contribution may claim; 0 is what inner_steps_max steps of one batch hold.",
            unit="tokens",
            cost="high lets a liar weigh more.",
            ge=0,
            lt=2**48,
        ),
    ] = 0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.grace_min_s > self.grace_max_s:
            raise ValueError(
                f"round.grace_min_s = {self.grace_min_s} is above round.grace_max_s = {self.grace_max_s}; swap them"
            )
        return self


class AggregationSection(Section):
    """How far one site may move the mean. Weights are capped at twice the median of the group in any case."""

    norm_clip: Annotated[
        bool,
        knob(
            "Scale a contribution to a segment down to clip_kappa times the median norm of the group; what is cut off"
            " stays in its site's error feedback. Source: arXiv 2508.15706.",
            unit="switch",
            cost="the owner of a segment reads each share twice; without it one site can end a run in one round.",
        ),
    ] = True
    clip_kappa: Annotated[
        float,
        knob(
            "Norms above so many times the median are clipped.",
            unit="median norms",
            cost="low holds honest sites back that did more work; high leaves a liar more room.",
            ge=1,
            le=1000,
        ),
    ] = 2.5
    drop_contrary: Annotated[
        bool,
        knob(
            "Do not count a contribution to a segment that points against those of all others, in groups of three or"
            " more; it stays in its site's error feedback. Needs norm_clip. Source: docs/adr/0015.",
            unit="switch",
            cost="the owner of a segment reads each share once more; without it a wrong sign subtracts though clipped.",
        ),
    ] = True
    centered_clip: Annotated[
        bool,
        knob(
            "Clip distances from the last round's result, at their median, instead of norms: a liar of ordinary norm is"
            " held back too."
            " For strategy.transform = 'identity' without fragments, and codecs that send every value."
            " Source: arXiv 2012.10333.",
            unit="switch",
            cost="snapshots and memory grow by one payload, the owner does about three times the work.",
        ),
    ] = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.centered_clip and not self.norm_clip:
            raise ValueError(
                "aggregation.centered_clip = true clips, but aggregation.norm_clip = false says not to; set norm_clip"
                " to true"
            )
        return self


class SnapshotSection(Section):
    """The shared state on disk, for restarts and newcomers."""

    every_rounds: Annotated[
        int,
        knob(
            "A snapshot after every so many rounds. Fewer make newcomers replay more entries.",
            unit="rounds",
            cost="disk writes of 8 bytes per parameter.",
            ge=1,
            le=1_000_000,
        ),
    ] = 10
    keep: Annotated[
        int, knob("Newest snapshots that are kept.", unit="snapshots", cost="disk space.", ge=1, le=1000)
    ] = 2
