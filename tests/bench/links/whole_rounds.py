"""Where a round's fixed time goes, with real outer workers: `python -m tests.bench.links.whole_rounds`.

`[--sites 2,3] [--rtts-ms 0,50] [--rounds 6] [--step-s 0.1] [--inner-steps 20]`: real sites on the test internet, a
small model, steps of a fixed length. `cost`: from the last contribution formed to the last entry applied, seconds;
`least`: of the rounds measured, nearest to that of a machine with nothing else to do. `goal`: 0.15 s and three round
trips. Per site and round: `syncs` in that time, and CPU time of daemon and outer worker in a whole round, milliseconds.
`asked`: inner steps of all phases as planned, then how many more were made because the exchange before was not over
(`for rounds`), and to be ready together with the others (`for others`).
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import end_when_told
from tests.bench.headline.trainer import STEP_S_VARIABLE
from tests.bench.links.fixed_cost import MOMENTS, NAMES, Moments, rounds_of
from tests.bench.links.watched_site import FILE_NAME
from tests.chaos.judge import read_events
from tests.harness.internet.conditions import rtt
from tests.harness.internet.life import committed, founded, peer_of, wait_entry_with
from tests.harness.internet.network import Internet
from tests.harness.running.network_namespaces import NamespacedSite
from tests.harness.running.sites import PYTHON, sites
from tests.harness.running.training import write_corpus
from tests.harness.running.warm import STEP_VARIABLE

PATIENCE_S = 240.0
NICE_VARIABLE = "DILOCOXD_WORKERS__OUTER_NICE"
"""Trainers pause here; what else wants the cores shall not come first."""
MODEL = {
    "vocab_size": 512, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4,
    "intermediate_size": 128, "seq_len": 32,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    num_sites: int
    rtt_s: float
    rounds: int
    step_s: float
    inner_steps: int

    @property
    def goal_s(self) -> float:
        return 0.15 + 3 * self.rtt_s


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one site since its start, seconds of CPU."""

    daemon_s: float
    outer_s: float


def settings(cell: Cell, folder: Path) -> list[str]:
    """Options of the founder's `init`."""
    values: dict[str, object] = {f"model.{name}": value for name, value in MODEL.items()} | {
        "data.corpus": f'"{write_corpus(folder)}"',
        "data.validation_sequences": 2,
        "data.evaluate_every_rounds": 0,
        "inner.batch_sequences": 2,
        "inner.microbatches": 1,
        "strategy.inner_steps": cell.inner_steps,
        "round.grace_min_s": 2.0,
        "round.grace_max_s": 30.0,
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def spent(site: NamespacedSite) -> Spent:
    """CPU time so far."""
    assert site.process is not None
    pids = site.process.pid, site.status()["workers"]["outer"]["pid"]
    daemon_s, outer_s = (sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
    return Spent(daemon_s, outer_s)


def row(cell: Cell) -> dict[str, object]:
    """Rounds of these sites, after those in which they met."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = NAMES[: cell.num_sites]
        internet = stack.enter_context(Internet(f"ch{os.getpid() % 10000}wr", names, rtt(cell.rtt_s)))
        members = founded(folder, internet, *settings(cell, folder), target="tiny:default")
        stack.enter_context(sites(*members))
        for member in members:
            member.environment |= {STEP_S_VARIABLE: str(cell.step_s), STEP_VARIABLE: "0", NICE_VARIABLE: "0"}
            member.start_command([*PYTHON, "tests.bench.links.watched_site", str(member.run_dir)])
        wait_entry_with(members[0], {peer_of(member) for member in members}, 0)
        first = len(committed(members[0])) + 1
        members[0].wait_height(first, PATIENCE_S)
        before = [spent(member) for member in members]
        members[0].wait_height(first + cell.rounds + 1, PATIENCE_S)
        after = [spent(member) for member in members]
        found = rounds_of([member.run_dir for member in members])
        whole = {n: found[n] for n in range(first, first + cell.rounds) if n in found and is_whole(found[n], cell)}
        return {
            "sites": cell.num_sites,
            "round trip": f"{cell.rtt_s * 1000:g} ms",
            **figures(cell, list(whole.values()), members),
            "daemon ms": per_round([b.daemon_s - a.daemon_s for a, b in zip(before, after, strict=True)], cell),
            "outer ms": per_round([b.outer_s - a.outer_s for a, b in zip(before, after, strict=True)], cell),
            **phases(cell, members, whole),
        }


def is_whole(moments: Moments, cell: Cell) -> bool:
    return [len(moments.at.get(what, ())) for what in MOMENTS.values()] == [cell.num_sites] * len(MOMENTS)


def per_round(seconds: Sequence[float], cell: Cell) -> int:
    """Milliseconds of one site."""
    return round(1000 * statistics.mean(seconds) / (cell.rounds + 1))


def figures(cell: Cell, rounds: Sequence[Moments], members: Sequence[NamespacedSite]) -> dict[str, object]:
    costs = [one.last("applied") - one.last("offered") for one in rounds]
    syncs = [
        sum(one.last("offered") <= json.loads(line)[0] < one.last("applied") for line in lines)
        for lines in ((member.run_dir / FILE_NAME).read_text().splitlines() for member in members)
        for one in rounds
    ]
    return {
        "rounds": len(rounds),
        "cost": round(statistics.median(costs), 3),
        "least": round(min(costs), 3),
        "goal": round(cell.goal_s, 3),
        "syncs": statistics.median(syncs),
    }


def phases(cell: Cell, members: Sequence[NamespacedSite], rounds: dict[int, Moments]) -> dict[str, int]:
    """Inner steps of the phases in the entries of these rounds, and why some have more than planned."""
    extended = {True: 0, False: 0}
    num_phases = 0
    rows = [row for row in committed(members[0]) if row["round"] in rounds]
    for member in members:
        me = peer_of(member)
        mine = {one["phase"] for row in rows for one in row["contributors"] if one["peer"] == me}
        num_phases += len(mine)
        for event in read_events(member.run_dir):
            if event["event"] == "phase.extended" and event["phase"] in mine:
                extended[bool(event["reason"])] += event["inner_steps"]
    return {"asked": num_phases * cell.inner_steps, "for rounds": extended[True], "for others": extended[False]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", default="2,3")
    parser.add_argument("--rtts-ms", default="0,50")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--inner-steps", type=int, default=20)
    options = parser.parse_args()
    end_when_told()
    for num_sites in map(int, options.sites.split(",")):
        for milliseconds in map(float, options.rtts_ms.split(",")):
            cell = Cell(num_sites, milliseconds / 1000, options.rounds, options.step_s, options.inner_steps)
            print(json.dumps(row(cell) | {"load_1min": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
