"""What trust costs honest sites: `python -m tests.bench.trust.cost [--sites 2,4,8,16]`. One JSON object per size.

`swarm`: two swarms of daemons without models run at the same time, one with everything on, one with everything off that
can be: round time, bytes and CPU seconds (daemon and p2pd) of a site and round, and the ratios on / off (target 1.05).
`bytes` are pieces of payloads, in rounds that all sites contributed to: who only observes sends no share, so rounds of
fewer contributors are cheaper whatever is on. `written` is all that p2pd writes, to peers and to its daemon, by the
kernel's count: HELLOs, votes and records too. Payloads have 4 kB here.
They share the cores with whatever else runs, which is why the ratio counts and not the figures.
`sum`: what the owner of a segment does with that many real shares, on and off by turns in one process, and the bytes of
a result. Nobody lies. Targets: TRUST, introduction of the design.
`--json OUT` keeps the rows, with date and load; `--page` writes what RESULTS holds into docs/lab/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform
from dilocoxd.outer.clipping import ClipRule, record_bytes
from dilocoxd.outer.passes import SegmentPass, reduce_pass, weigh_pass
from dilocoxd.outer.rounding import mean_weights
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.bench import end_when_told
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until

PATIENCE_S = 600.0
RESULTS = Path(__file__).parent / "results" / "cost.json"
PAGE = Path(__file__).parents[3] / "docs" / "lab" / "benchmarks.md"
BLOCK = re.compile(r"(<!-- cost of trust -->\n).*?(\n<!-- /cost of trust -->)", re.DOTALL)
OFF = ("--set", "admission.mode=open", "--set", "admission.probation_rounds=0", "--set", "aggregation.norm_clip=false")
KAPPA = 2.5
PEERS_MAX = 16
ROUNDS_OF = ("--set", "round.grace_min_s=1", "--set", f"round.peers_max={PEERS_MAX}")


@dataclass
class Swarm:
    """Daemons of one run, and what they had spent when the measured time began."""

    members: list[SiteProcess]
    spent_before: float = 0.0
    written_before: float = 0.0
    heights: list[int] = field(default_factory=list)
    began: float = 0.0

    def spent_s(self) -> float:
        total = 0.0
        for process in (each for member in self.members for each in member.tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def written(self) -> float:
        """Bytes, of all p2pd of the swarm."""
        total = 0
        for process in (each for member in self.members for each in member.tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.io_counters().write_chars if process.name() == "p2pd" else 0
        return float(total)

    def sent(self) -> list[int]:
        """Bytes that a site sent, of each site and round since `begin` that all contributed to."""
        return [
            row["bytes_sent"]
            for member, height in zip(self.members, self.heights, strict=True)
            for row in member.rounds()
            if row["round"] >= height and row["applied_at"] and len(row["contributors"]) == len(self.members)
        ]

    def begin(self) -> None:
        self.heights = [member.status()["height"] for member in self.members]
        self.spent_before, self.written_before, self.began = self.spent_s(), self.written(), time.monotonic()

    def figures(self) -> dict[str, float]:
        """Since `begin`, by site and round."""
        wall_s = time.monotonic() - self.began
        spent_s, written = self.spent_s() - self.spent_before, self.written() - self.written_before
        rows = [row for row in self.members[0].rounds() if row["round"] >= self.heights[0] and row["applied_at"]]
        rounds = max(1, self.members[0].status()["height"] - self.heights[0])
        return {
            "rounds": rounds,
            "contributors": round(statistics.mean([len(row["contributors"]) for row in rows] or [0]), 2),
            "round_s": round(wall_s / rounds, 3),
            "bytes": round(statistics.mean(self.sent() or [0])),
            "written": round(written / rounds / len(self.members)),
            "cpu_s": round(spent_s / rounds / len(self.members), 4),
        }


def founded(folder: Path, count: int, phase_s: float, options: tuple[str, ...], stack: contextlib.ExitStack) -> Swarm:
    """That many sites that have all contributed to an entry together, or to many each for itself."""
    folder.mkdir()
    first = found_run(folder, "s0", *ROUNDS_OF, *options)
    first.environment["FAKE_SLOTS"] = str(PEERS_MAX)
    stack.enter_context(sites(first))
    first.start_without_model(phase_s)
    first.wait_height(1, PATIENCE_S)
    members = [first]
    for number in range(1, count):
        member = join_run(folder, f"s{number}", first)
        member.environment["FAKE_SLOTS"] = str(PEERS_MAX)
        stack.enter_context(sites(member))
        member.start_without_model(phase_s)
        members.append(member)

    def is_joint() -> bool:
        return any(len(row["contributors"]) == count for row in first.rounds() if row["applied_at"])

    wait_until(is_joint, f"an entry of {count}", PATIENCE_S, first.describe)
    return Swarm(members)


def swarms(folder: Path, count: int, phase_s: float, rounds: int) -> dict[str, Any]:
    """Row `swarm`: both at the same time, until the slower one has made so many rounds."""
    with contextlib.ExitStack() as stack:
        running = {
            "on": founded(folder / f"on{count}", count, phase_s, (), stack),
            "off": founded(folder / f"off{count}", count, phase_s, OFF, stack),
        }
        for swarm in running.values():
            swarm.begin()
        for swarm in running.values():
            swarm.members[0].wait_height(swarm.heights[0] + rounds, PATIENCE_S)
        found: dict[str, Any] = {name: swarm.figures() for name, swarm in running.items()}
    on, off = found["on"], found["off"]
    ratios = {name: round(on[name] / off[name], 3) for name in ("round_s", "bytes", "written", "cpu_s") if off[name]}
    return found | {"ratio": ratios}


def sums(count: int, elements: int, repetitions: int, codec_name: str) -> dict[str, Any]:
    """Row `sum`: CPU ms of one thread; on, off, on, off, ... in one process."""
    torch.set_num_threads(1)
    codec = codec_from_name(codec_name)
    layout = make_layout([ParamSpec("p", (elements,))], elements)
    at = SegmentPass(NoTransform(layout, codec), 0, layout.segments[0])
    common = torch.randn(elements)
    shares = [bytearray(codec.payload_bytes(elements)) for _ in range(count)]
    for share in shares:
        codec.encode(common + torch.randn(elements), share)
    weights, out = mean_weights([1] * count), bytearray(at.payload_bytes)
    rules = {"on": ClipRule(KAPPA, None, True), "clip": ClipRule(KAPPA), "off": ClipRule()}
    spent: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(repetitions):
        for name, rule in rules.items():
            began = time.thread_time()
            reduce_pass(at, shares, weigh_pass(at, shares, weights, rule)[0], None, out)
            spent[name].append(1e3 * (time.thread_time() - began))
    median = {name: round(statistics.median(times), 2) for name, times in spent.items()}
    more = record_bytes(PEERS_MAX) / codec.payload_bytes(elements)
    ratios = {"cpu": round(median["on"] / median["off"], 2), "cpu_clip_only": round(median["clip"] / median["off"], 2)}
    return {"codec": codec_name, "cpu_ms": median, "ratio": ratios | {"bytes": round(1 + more, 5)}}


def report(rows: list[dict[str, Any]]) -> str:
    """Markdown: on / off of each size."""
    names = ["sites", "date, load", "rounds", "contributors", "round time, s", "CPU a site and round, s"]
    names += ["payloads, bytes", "all that p2pd writes, bytes", "an owner's sum, CPU ms"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in rows:
        on, off, ratio = (row["swarm"][name] for name in ("on", "off", "ratio"))
        cells = [row["sites"], f"{row['date']}, {row['load']:.0f}"]
        cells += [f"{on[name]} / {off[name]}" for name in ("rounds", "contributors")]
        cells += [f"{on[n]} / {off[n]} (x {ratio[n]})" for n in ("round_s", "cpu_s", "bytes", "written")]
        summed = row["sum"]
        cells.append(f"{summed['cpu_ms']['on']} / {summed['cpu_ms']['off']} (x {summed['ratio']['cpu']})")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def rendered(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with the table of these rows."""
    return BLOCK.sub(lambda found: f"{found[1]}{report(rows)}{found[2]}", page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.trust.cost", description=__doc__)
    parser.add_argument("--sites", default="2,4,8,16")
    parser.add_argument("--rounds", type=int, default=20, help="measured, of each swarm")
    parser.add_argument("--phase-s", type=float, default=2.0)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of the segment that is summed")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--codec", default="int4")
    parser.add_argument("--json", type=Path, help="add the rows to this file")
    parser.add_argument("--page", action="store_true", help="only write the page of what was measured")
    options = parser.parse_args()
    if options.page:
        rows = json.loads(RESULTS.read_text(encoding="utf-8"))
        PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
        return 0
    for count in map(int, options.sites.split(",")):
        row: dict[str, Any] = {"sites": count, "date": time.strftime("%Y-%m-%d", time.gmtime())}
        row["sum"] = sums(count, options.elements, options.repetitions, options.codec)
        with tempfile.TemporaryDirectory() as folder:
            row["swarm"] = swarms(Path(folder), count, options.phase_s, options.rounds)
        row["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(row), flush=True)
        if options.json is not None:
            kept = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else []
            options.json.write_text(json.dumps([*kept, row], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    end_when_told()
    sys.exit(main())
