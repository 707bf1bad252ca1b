"""How long an exchange lasts beside what `dilocoxd plan` says: `python -m tests.bench.links.predicted`.

`[--mbits 100,200,1000] [--rtts-ms 0,100,100] [--rounds 5] [--hidden-size 256] [--step-s 0.2]`: one link for each pair;
two real sites on the test internet, by default 10.5M parameters in int4, 5.4 MB a contribution. `measured`: median of
`exchange_s` of both sites' rounds, after those in which they met; `predicted`: the same part by the formulas.
"""

import argparse
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import load_manifest
from dilocoxd.machines.exchange.cost import ExchangeWork, Link, exchange_cost
from dilocoxd.planner.footprint import footprint
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
NAMES = "ab"


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    mbit: float
    rtt_s: float
    rounds: int
    hidden_size: int
    step_s: float

    @property
    def link(self) -> Link:
        return Link(self.mbit * 1e6, self.mbit * 1e6, self.rtt_s)


def settings(cell: Cell, folder: Path) -> list[str]:
    """Options of the founder's `init`."""
    values: dict[str, object] = {f"model.{name}": value for name, value in MODEL.items()} | {
        "data.corpus": f'"{write_corpus(folder)}"',
        "data.validation_sequences": 2,
        "data.evaluate_every_rounds": 0,
        "inner.batch_sequences": 1,
        "inner.microbatches": 1,
        "strategy.codec": '"int4"',
        "strategy.inner_steps": 5,
        "strategy.segment_elements_max": SEGMENT_ELEMENTS,
        "model.hidden_size": cell.hidden_size,
        "model.intermediate_size": 4 * cell.hidden_size,
        "round.grace_min_s": 2.0,
        "round.grace_max_s": 30.0,
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def exchanges_s(member: NamespacedSite, first: int) -> list[float]:
    """Of the rounds from `first` on."""
    rows = [row for row in member.rounds() if row["round"] >= first and row["committed_at"]]
    return [row["times"]["exchange_s"] for row in rows if row["times"]["exchange_s"]]


def row(cell: Cell) -> dict[str, object]:
    """Rounds of two sites, after those in which they met."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        internet = stack.enter_context(Internet(f"ch{os.getpid() % 10000}pm", NAMES, rtt(cell.rtt_s)))
        members = founded(folder, internet, *settings(cell, folder), target="tiny:default")
        for name in NAMES:
            internet.shape(name, cell.mbit)
        stack.enter_context(sites(*members))
        for member in members:
            member.environment |= {STEP_S_VARIABLE: str(cell.step_s), STEP_VARIABLE: "0", NICE_VARIABLE: "0"}
            member.start_command([*PYTHON, "tests.bench.links.watched_site", str(member.run_dir)])
        wait_entry_with(members[0], {peer_of(member) for member in members}, 0)
        first = len(members[0].rounds()) + 2
        members[0].wait_height(first + cell.rounds, PATIENCE_S)
        measured = [seconds for member in members for seconds in exchanges_s(member, first)]
        work = work_of(members[0].run_dir)
        predicted = exchange_cost(work, cell.link).exchange_s
        median = statistics.median(measured)
        return {
            "link": f"{cell.mbit:g} Mbit/s, {1000 * cell.rtt_s:g} ms",
            "MB": round(work.payload_bytes / 1e6, 2),
            "segments": work.num_segments,
            "measured": round(median, 3),
            "least": round(min(measured), 3),
            "predicted": round(predicted, 3),
            "ratio": round(median / predicted, 2),
            "load_1min": round(os.getloadavg()[0], 1),
        }


def work_of(run_dir: Path) -> ExchangeWork:
    """What one exchange of this run moves between two sites."""
    manifest = load_manifest(run_dir / "run.toml")
    weight = footprint(manifest, shape_of(manifest, None, len(NAMES)))
    counts = (weight.parameters, weight.payload_bytes, weight.num_segments, weight.num_passes)
    return ExchangeWork(*counts, manifest.strategy.codec, len(NAMES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbits", default="100,200,1000")
    parser.add_argument("--rtts-ms", default="0,100,100")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--step-s", type=float, default=0.2)
    options = parser.parse_args()
    pairs = zip(options.mbits.split(","), options.rtts_ms.split(","), strict=True)
    for mbit, milliseconds in pairs:
        cell = Cell(float(mbit), float(milliseconds) / 1000, options.rounds, options.hidden_size, options.step_s)
        print(json.dumps(row(cell)), flush=True)


if __name__ == "__main__":
    main()
