"""The table of `make bench`: each row is a benchmark with options for a short measurement, and what a page says of it.

All limits together are half an hour, without the waiting for a quiet machine. What takes hours (convergence, soaks,
memory over 200 rounds) is measured by hand.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SECONDS_MAX = 1800
"""Of all rows together."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the page: one number of a row's tables."""

    what: str
    column: str = ""
    pattern: str = ""
    """Instead of a column: a line that it said beside tables, with the number in brackets."""
    where: dict[str, object] = field(default_factory=dict)
    """Only lines of the table with these values."""
    table: int = 0
    of: Callable[[Sequence[float]], float] = statistics.median
    absent: str = ""
    """What stands there for a row that has None, which then is an answer; empty: it is none."""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    def is_met(self, value: float | None) -> bool | None:
        """None: there is no target, or no value."""
        if value is None or (self.at_most is None and self.at_least is None):
            return None
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True, slots=True)
class Row:
    """A benchmark of tests/bench."""

    name: str
    module: str
    options: str
    limit_s: int
    """It is ended then, and nothing is written."""
    figures: tuple[Figure, ...] = ()
    picture: str = ""
    """File of docs/images that it draws."""


HEADLINE = (
    "--sites 2 --ratios 31 --step-s 0.1 --hidden-size 128 --inner-steps 60 --rounds 3 --leg-s 40 --ddp-steps 4"
    " --ddp-s 20 --json {results}/headline-curves.json --plot {images}/headline.png"
)
PAPER_357 = (
    "--sites 2 --ratios 357 --legs default,dilocox --step-s 0.1 --hidden-size 128 --inner-steps 60 --rounds 4"
    " --leg-s 40 --ddp-steps 1 --ddp-s 20"
)
SHARE = "tokens/s, of those without links; 2 sites, an all-reduce of 31 steps"
NONE = "none in time"
GENERATION_S = 0.5
"""Of the second in which a site whose trainer was killed is to train again; the rest is the pause of a restart."""
NEXT_S = 2.5
"""A second, and an exchange of the row's sites."""
MIDDLE, FAST = "200 Mbit/s, 100 ms", "1000 Mbit/s, 100 ms"
ROWS = (
    Row(
        "headline", "headline", HEADLINE, 300,
        (
            Figure(f"`default`: {SHARE}", "of_no_links", where={"way": "default"}, at_least=0.97),
            Figure("`dilocox`: the same", "of_no_links", where={"way": "dilocox"}, at_least=0.97),
            Figure("`diloco`, which waits for links: the same", "of_no_links", where={"way": "diloco"}),
            Figure("`default`: trainers' idle share", "idle_share", where={"way": "default"}, at_most=0.01),
        ),
        "headline.png",
    ),
    Row(
        "headline-357", "headline", PAPER_357, 155,
        (
            Figure("an all-reduce of 357 steps: `default`, times the tokens/s of DDP", "times_ddp",
                   where={"way": "default"}, at_least=347),
            Figure("the worse of `default` and `dilocox`: tokens/s, of those without links", "of_no_links", of=min,
                   at_least=0.97),
        ),
    ),
    Row(
        "codecs", "compression", "--elements 16777216 --repetitions 8", 30,
        (
            Figure("int4, encode and decode, copies", "both_memcpys", where={"codec": "int4"}, at_most=3),
            Figure("int2, the same", "both_memcpys", where={"codec": "int2"}, at_most=8),
            Figure("top-k 64, the same", "both_memcpys", where={"codec": "topk"}, at_most=10),
            Figure("low rank, worst of 16, 64, 128: three fp32 products", "ratio_fp32", table=1, of=max, at_most=1.2),
            Figure("the same, the last one in float64, for equal bits", "ratio_exact", table=1, of=max, at_most=1.2),
        ),
    ),
    Row(
        "codec-memory", "compression_memory", "", 15,
        (Figure("scratch of a reduction, the worst codec, segments", "reduce", of=max, at_most=1.3),),
    ),
    Row(
        "outer-step", "outer.step", "--rounds 6", 25,
        (
            Figure("outer worker, int4: CPU ns per parameter", "round ns", where={"codec": "int4", "loops": "compiled"},
                   at_most=20),
            Figure("the same, int2", "round ns", where={"codec": "int2", "loops": "compiled"}, at_most=25),
        ),
    ),
    Row(
        "data", "data", "--mib 16 --gib 2", 20,
        (
            Figure("packing as GPT-2 splits: MB/s", pattern=r"as GPT-2 splits: ([\d.]+) MB/s", at_least=10),
            Figure("packing as Qwen splits: MB/s", pattern=r"as Qwen splits: ([\d.]+) MB/s", at_least=10),
            Figure("reading 2 GiB: times what a trainer needs", pattern=r" ([\d.]+) times what 125 M", at_least=50),
            Figure("the same: MiB of memory more", pattern=r"memory grew by ([\d.]+) MiB", at_most=64),
            Figure("reading: times what `tiny` needs", pattern=r" ([\d.]+) times what that of tiny", at_least=50),
            Figure("reading: times what `demo` needs", pattern=r" ([\d.]+) times what that of demo", at_least=50),
        ),
    ),
    Row(
        "overlap", "overlap", "--rounds 5 --ratios 0.5 --delays arrival --limit-s 60", 70,
        (
            Figure("idle share, exchange of half a phase", "idle_share", where={"asked": 0.5}, of=max, at_most=0.02),
            Figure("there, two sites on two cores: steps beyond those asked", "extended_steps", where={"asked": 0.5},
                   of=max, at_most=0),
        ),
    ),
    Row(
        "exchange-machine", "machines.exchange", "", 10,
        (Figure("ten times the segments: times the CPU", pattern=r"take ([\d.]+) times", at_most=11),),
    ),
    Row(
        "data-plane", "links.data_plane", "--rtts-ms 100 --repetitions 5 --p2pd-mib 4", 220,
        (
            Figure("data connections, 200 Mbit/s, 100 ms: MB/s", "data MB/s", where={"link": MIDDLE}, of=min,
                   at_least=23.75),
            Figure("the same, 1000 Mbit/s, 100 ms", "data MB/s", where={"link": FAST}, of=min, at_least=112.5),
            Figure("daemon and p2pd there, CPU-s per GB: sender", "CPU-s/GB sender", where={"link": FAST}, of=max,
                   at_most=1.5),
            Figure("the same, receiver", "receiver", where={"link": FAST}, of=max, at_most=1.5),
        ),
    ),
    Row(
        "added-delay", "links.added_delay", "", 45,
        (Figure("a round trip beside a transfer, 20 and 100 Mbit/s: ms more", "added ms", of=max, at_most=50),),
    ),
    Row(
        "fixed-cost", "links.fixed_cost", "--sites 2 --rtts-ms 0,100 --connections 8 --rounds 8", 50,
        (Figure("last contribution to last applied entry, 2 sites, 100 ms: s", "cost",
                where={"round trip": "100 ms", "connections": 8}, at_most=0.45),),
    ),
    Row(
        "whole-rounds", "links.whole_rounds", "--sites 2,4 --rtts-ms 50 --rounds 5", 75,
        (
            Figure("with real outer workers, 50 ms, the worse of 2 and 4 sites: s", "cost", of=max, at_most=0.3),
            Figure("there: steps beyond those asked, for a round that was not over", "for rounds", of=max, at_most=0),
        ),
    ),
    Row(
        "catch-up", "catch_up", "--mib 100 --repetitions 5", 80,
        (
            Figure("three donors of 100 Mbit/s: of the payload that links carry (0.956 of their rate)",
                   "share_of_payload_rate", where={"sources": 3}, at_least=0.95),
        ),
    ),
    Row(
        "startup", "restarts.startup", "5", 85,
        (
            Figure("`run` to the first inner step, `tiny`: s", "first inner step after, s", table=1, at_most=5),
            Figure("`dilocoxd --help`: CPU-s", "CPU s", where={"command": "dilocoxd --help"}, at_most=0.3),
        ),
    ),
    Row(
        "generations", "restarts.generations", "5", 30,
        (Figure("generation of two ranks to gloo's first sum: s", "start s", where={"way": "ours"},
                at_most=GENERATION_S),),
    ),
    Row(
        "again", "restarts.again", "5", 40,
        (Figure("a trainer killed: its site's next inner step, s", "inner step again after, s", at_most=1),),
    ),
    Row(
        "joins", "launches", "5 0.24", 120,
        (Figure("`join` of a fresh site until it trains, `tiny`: s", "median s",
                where={"stage reached": "training"}, at_most=5),),
    ),
    Row(
        "survivors", "survivors", "--kills 1 --roles member --steps 40 --step-s 0.1 --mbit 100", 150,
        (
            Figure("killed in an exchange: others' next entry, s", "next_s", where={"mode": "killed"}, at_most=NEXT_S),
            Figure("its cable pulled, the same", "next_s", where={"mode": "vanished"}, at_most=NEXT_S),
            Figure("frozen: others' next entry, s", "next_s", where={"mode": "frozen"}),
        ),
    ),
    Row(
        "others", "peers", "--ways gloo,hivemind,torchft --mib 10 --mbit 100 --rounds 3 --turns 5", 220,
        (
            Figure("gloo's ring, kill -9 to its next exchange: s", "next_s", where={"way": "gloo"}, absent=NONE),
            Figure("hivemind's averager, the same", "next_s", where={"way": "hivemind"}, absent=NONE),
            Figure("torchft's manager over gloo, the same", "next_s", where={"way": "torchft"}, absent=NONE),
        ),
    ),
    Row(
        "trust", "trust.cost", "--sites 2 --rounds 8 --repetitions 5", 60,
        (
            Figure("an owner's sum with defences, times the CPU of a mean", "sum.ratio.cpu"),
            Figure("a round with defences, times one without", "swarm.ratio.round_s", at_most=1.05),
        ),
    ),
)  # fmt: skip


def row_of(name: str) -> Row:
    """Raises KeyError."""
    return {row.name: row for row in ROWS}[name]
