"""How long an exchange lasts beside what `dilocoxd plan` says: `python -m tests.bench.links.predicted`.

`[--sites 2,3] [--mbits 20,100,500,1000] [--rtts-ms 0,50,100,200] [--rounds 4] [--codec int2] [--hidden-size 256]
[--step-s 0.5]`: each rate with each round trip. Real sites on the test internet, new ones for each rate,
for BBR would go on as slow as it had learned on the one before; by default 10.5M parameters in the codec of `default`,
2.8 MB a contribution. `measured`: median of `exchange_s` of all sites' rounds, those left out that had begun with
another round trip; `least` is nearest to a machine with nothing else to do; `predicted`: the same part by the formulas,
without what the test link lets pass at once after a pause. `line`: bytes a site sends, without those / `measured` /
rate; `line least` the same of `least`.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import load_manifest
from dilocoxd.machines.exchange.cost import ExchangeWork, Link, bytes_each_way, exchange_cost
from dilocoxd.planner.footprint import exchange_work, footprint
from tests.bench import end_when_told
from tests.bench.headline.trainer import STEP_S_VARIABLE
from tests.bench.links.whole_rounds import NICE_VARIABLE, PATIENCE_S
from tests.harness.internet.conditions import rtt
from tests.harness.internet.life import founded, peer_of, wait_entry_with
from tests.harness.internet.network import Internet
from tests.harness.running.network_namespaces import NamespacedSite
from tests.harness.running.sites import PYTHON, sites
from tests.harness.running.training import write_corpus
from tests.harness.running.warm import STEP_VARIABLE

MODEL = {"vocab_size": 4096, "num_layers": 8, "num_heads": 4, "num_kv_heads": 4, "seq_len": 32}
SEGMENT_ELEMENTS = 262_144
NAMES = "abcdefgh"
BURST_BYTES = 256 * 1024
"""Of tbf (network_namespaces.BURST)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    mbit: float
    rtt_s: float

    @property
    def link(self) -> Link:
        return Link(self.mbit * 1e6, self.mbit * 1e6, self.rtt_s)


@dataclass(frozen=True, slots=True)
class Run:
    """What is exchanged."""

    num_sites: int
    codec: str
    hidden_size: int
    rounds: int
    step_s: float

    def settings(self, folder: Path) -> list[str]:
        """Options of the founder's `init`."""
        values: dict[str, object] = {f"model.{name}": value for name, value in MODEL.items()} | {
            "data.corpus": f'"{write_corpus(folder)}"',
            "data.validation_sequences": 2,
            "data.evaluate_every_rounds": 0,
            "inner.batch_sequences": 1,
            "inner.microbatches": 1,
            "inner.optimizer": '"adamw"',
            "strategy.codec": f'"{self.codec}"',
            "strategy.inner_steps": 4,
            "strategy.segment_elements_max": SEGMENT_ELEMENTS,
            "model.hidden_size": self.hidden_size,
            "model.intermediate_size": 4 * self.hidden_size,
            "round.grace_min_s": 2.0,
            "round.grace_max_s": 30.0,
        }
        return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def exchanges_s(member: NamespacedSite, first: int, num_sites: int) -> list[float]:
    """Of the rounds from `first` on that all sites were in."""
    rows = [row for row in member.rounds() if row["round"] >= first and len(row["contributors"]) == num_sites]
    return [row["times"]["exchange_s"] for row in rows if row["committed_at"] and row["times"]["exchange_s"]]


def rows(run: Run, cells: Sequence[Cell]) -> Iterator[dict[str, object]]:
    """Of sites that go on while their round trips become those of one cell after the other; the rate is one for all."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = NAMES[: run.num_sites]
        internet = stack.enter_context(Internet(f"ch{os.getpid() % 10000}pm", names, rtt(0)))
        members = founded(folder, internet, *run.settings(folder), target="tiny:default")
        for name in names:
            internet.shape(name, cells[0].mbit)
        stack.enter_context(sites(*members))
        for member in members:
            member.environment |= {STEP_S_VARIABLE: str(run.step_s), STEP_VARIABLE: "0", NICE_VARIABLE: "0"}
            member.start_command([*PYTHON, "tests.bench.links.watched_site", str(member.run_dir)])
        peers = {peer_of(member) for member in members}
        wait_entry_with(members[0], peers, 0)
        work = work_of(members[0].run_dir, run.num_sites)
        for cell in cells:
            internet.set(rtt(cell.rtt_s))
            first = members[0].status()["height"] + 2  # one is under way, perhaps
            members[0].wait_height(first + run.rounds, PATIENCE_S)
            wait_entry_with(members[0], peers, first)
            yield row(cell, work, [seconds for one in members for seconds in exchanges_s(one, first, run.num_sites)])


def row(cell: Cell, work: ExchangeWork, measured: Sequence[float]) -> dict[str, object]:
    """A line of the table."""
    at_once_s = 8 * BURST_BYTES / (cell.mbit * 1e6)  # what passes so takes the line no time, and is not its rate
    predicted = exchange_cost(work, cell.link).exchange_s - at_once_s
    median = statistics.median(measured)
    num_bytes = bytes_each_way(work.payload_bytes, work.num_sites, is_gathered=work.is_gathered)
    sent_s = max(0.0, 8 * num_bytes / (cell.mbit * 1e6) - at_once_s)
    return {
        "sites": work.num_sites,
        "link": f"{cell.mbit:g} Mbit/s, {1000 * cell.rtt_s:g} ms",
        "MB": round(work.payload_bytes / 1e6, 2),
        "rounds": len(measured),
        "measured": round(median, 3),
        "least": round(min(measured), 3),
        "predicted": round(predicted, 3),
        "ratio": round(median / predicted, 2),
        "line": round(sent_s / median, 3),
        "line least": round(sent_s / min(measured), 3),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def work_of(run_dir: Path, num_sites: int) -> ExchangeWork:
    """What one exchange of this run moves between its sites."""
    manifest = load_manifest(run_dir / "run.toml")
    weight = footprint(manifest, shape_of(manifest, None, num_sites))
    return exchange_work(manifest, weight, num_sites)


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", default="2,3")
    parser.add_argument("--mbits", default="20,100,500,1000")
    parser.add_argument("--rtts-ms", default="0,50,100,200")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--codec", default="int2")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--step-s", type=float, default=0.5)
    options = parser.parse_args()
    end_when_told()
    for num_sites, mbit in product(map(int, options.sites.split(",")), numbers(options.mbits)):
        run = Run(num_sites, options.codec, options.hidden_size, options.rounds, options.step_s)
        for found in rows(run, [Cell(mbit, milliseconds / 1000) for milliseconds in numbers(options.rtts_ms)]):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
