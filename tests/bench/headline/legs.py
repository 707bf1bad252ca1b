"""Real sites over the links of a cell, with one strategy: tokens per second, idle time, phases, losses.

Links are free until all sites have had a round together, and thin from then on; the rounds behind the first one that
began on thin links are measured. Only what is in the chain counts as trained.
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench.headline.ground import Ground, shape
from tests.bench.headline.trainer import STEP_S_VARIABLE
from tests.bench.headline.waits import WAITS_VARIABLE, waited_s
from tests.chaos.judge import read_events
from tests.harness.internet.life import committed, founded, peer_of
from tests.harness.running.network_namespaces import NamespacedSite, Network
from tests.harness.running.sites import PYTHON, sites, wait_until
from tests.harness.running.training import write_corpus
from tests.harness.running.warm import STEP_VARIABLE

NOTHING_SENT_LESS = {"strategy.transform": '"identity"', "strategy.lowrank_r": 0, "strategy.codec": '"fp32"'}
WAITS = {"strategy.delay": '"none"'}
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Leg:
    """A way to train."""

    strategy: str
    """Of dilocoxd/config/presets/strategies."""
    changes: dict[str, object] = field(default_factory=dict)
    keeps_inner_steps: bool = False
    """Its own H, or one for all who have it from the paper."""


LEGS = {
    "default": Leg("default", keeps_inner_steps=True),
    "dilocox": Leg("dilocox"),
    "diloco": Leg("diloco"),
    "no overlap": Leg("dilocox", WAITS),
    "no compression": Leg("dilocox", NOTHING_SENT_LESS),
    "neither": Leg("dilocox", WAITS | NOTHING_SENT_LESS),
}
"""The last three are the paper's ablations of `dilocox`."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a leg is measured."""

    inner_steps: int
    """H, of legs that do not keep theirs."""
    rounds: int
    limit_s: float
    """Fewer rounds are enough then, but at least one."""
    own_inner_steps: int = 0
    """H of the others; 0: the preset's."""
    meet_s: float = 120.0
    """Patience until all sites have had a round together on free links: several phases."""

    @property
    def round_s(self) -> float:
        """Patience for a round."""
        return max(self.meet_s, 2 * self.limit_s)


@dataclass(frozen=True, slots=True)
class LegRun:
    """Figures of one run."""

    tokens_per_s: float
    """Of all sites, in the chain."""
    rounds: int
    seconds: float
    idle_share: float
    """Trainers' waiting, of wall time; the worst site's."""
    phases: tuple[int, ...]
    """Inner steps of all measured phases of all sites."""
    exchange_s: float
    bytes_per_round: int
    curve: tuple[tuple[float, float], ...]
    """(seconds since the first inner step, validation loss of the shared model)"""
    planned_tokens_per_s: float = 0.0
    """By the formulas of `dilocoxd plan`."""
    step_took_s: float = 0.0
    """Median of what inner steps really took, pause and all; of the slowest site."""

    @property
    def of_planned(self) -> float:
        """Of those; 0: not computed."""
        return self.tokens_per_s / self.planned_tokens_per_s if self.planned_tokens_per_s else 0.0


def manifest_options(leg: Leg, ground: Ground, length: Length, folder: Path) -> list[str]:
    """Options of the founder's `init`."""
    corpus = folder / "corpus"
    settings = ground.settings() | leg.changes
    settings["data.corpus"] = f'"{corpus if corpus.is_dir() else write_corpus(folder)}"'
    inner_steps = length.own_inner_steps if leg.keeps_inner_steps else length.inner_steps
    if inner_steps:
        settings["strategy.inner_steps"] = inner_steps
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def found_leg(network: Network, leg: Leg, ground: Ground, length: Length, folder: Path) -> list[NamespacedSite]:
    """Run directories of a run with this strategy, below `folder`, whose text they share."""
    place = folder / f"{leg.strategy}-{time.monotonic_ns()}"
    options = manifest_options(leg, ground, length, folder)
    members = founded(place, network, *options, target=f"tiny:{leg.strategy}")
    for member in members:
        member.environment |= {
            STEP_S_VARIABLE: str(ground.step_s),
            STEP_VARIABLE: "0",
            WAITS_VARIABLE: str(_waits_of(member)),
        }
        member.cold = False  # starts are not measured, and there are many
    return members


def run_leg(network: Network, members: list[NamespacedSite], bit_per_s: float, length: Length) -> LegRun:
    """Train until there is enough to measure. Raises AssertionError if sites do not meet or no round ends."""
    with sites(*members):
        for member in members:
            member.start_command([*PYTHON, "tests.bench.headline.site", str(member.run_dir)])
        peers = {peer_of(member) for member in members}
        wait_until(lambda: _is_joint(members[0], peers), "a round of all", length.meet_s, members[0].describe)
        shape(network, "".join(network.names), bit_per_s)
        before = _applied(members[0], _newest(members[0])["round"] + 1, length.round_s)
        began, began_unix = time.monotonic(), time.time()
        last = _train(members[0], before, length)
        ended = time.monotonic()
        steps_s = [step_took_s(member.get("/v1/losses")["inner"], began_unix) for member in members]  # type: ignore[index]
        idle_s = max(waited_s(_waits_of(member), began, ended) for member in members)
        rows = [row for row in committed(members[0]) if before["round"] < row["round"] <= last["round"]]
        seconds = last["applied_at"] - before["applied_at"]
        return _figures(rows, seconds, idle_s / (ended - began), max(steps_s), _curve(members[0]))


def step_took_s(losses: Iterable[Sequence[float]], since_unix: float) -> float:
    """Median time between two inner steps since then; `losses`: (unix seconds, step, loss) of each step."""
    times = [each[0] for each in losses if each[0] >= since_unix]
    return statistics.median(after - before for before, after in pairwise(times)) if len(times) > 1 else 0.0


def _train(site: NamespacedSite, before: dict[str, Any], length: Length) -> dict[str, Any]:
    """The last round that counts."""
    deadline = time.monotonic() + length.limit_s
    last = _applied(site, before["round"] + 1, length.round_s)
    while last["round"] < before["round"] + length.rounds and time.monotonic() < deadline:
        newest = _newest(site)
        if newest["round"] > last["round"]:
            last = newest
        time.sleep(POLL_S)
    return last


def _is_joint(site: NamespacedSite, peers: set[str]) -> bool:
    return any({part["peer"] for part in row["contributors"]} >= peers for row in committed(site))


def _newest(site: NamespacedSite) -> dict[str, Any]:
    return next((row for row in reversed(site.rounds()) if row["applied_at"]), {"round": -1})


def _applied(site: NamespacedSite, number: int, patience_s: float) -> dict[str, Any]:
    """The newest applied round once `number` is applied."""
    deadline = time.monotonic() + patience_s
    while (newest := _newest(site))["round"] < number:
        assert time.monotonic() < deadline, f"no round {number} within {patience_s:.0f} s\n{site.describe()}"
        time.sleep(POLL_S)
    return newest


def _waits_of(site: NamespacedSite) -> Path:
    return site.run_dir.parent / f"{site.name}.waits"


def _curve(site: NamespacedSite) -> tuple[tuple[float, float], ...]:
    """From the loss of the first weights on, which is measured as the first step begins."""
    found = [
        (record["time"], record["validation_loss"])
        for record in read_events(site.run_dir)
        if record["event"] == "validation.measured"
    ]
    return tuple((at - found[0][0], loss) for at, loss in found)


def _figures(
    rows: list[dict[str, Any]],
    seconds: float,
    idle_share: float,
    step_took_s: float,
    curve: tuple[tuple[float, float], ...],
) -> LegRun:
    parts = [part for row in rows for part in row["contributors"]]
    return LegRun(
        tokens_per_s=sum(part["tokens"] for part in parts) / seconds,
        rounds=len(rows),
        seconds=seconds,
        idle_share=idle_share,
        phases=tuple(part["inner_steps"] for part in parts),
        exchange_s=statistics.median(row["times"]["exchange_s"] or 0.0 for row in rows),
        bytes_per_round=round(statistics.median(row["bytes_sent"] or 0 for row in rows)),
        curve=curve,
        step_took_s=step_took_s,
    )
