"""Tokens per second over thin links, beside torch's own DDP: `python -m tests.bench.headline [--sites 2,3]`.

For each number of sites and each ratio, in turns: DDP (gloo), then sites of dilocoxd with each strategy and with the
ablations of the DiLoCoX paper, all with the same model, batch, text and links, in namespaces of one machine. A site is
one rank with one thread. Steps have a fixed length, most of it a pause: the work of the daemons is then not taken from
the trainers, as on a machine whose trainers have a GPU. DDP makes a few steps; its tokens per second are those of such
steps for ever. `goal` and `of_no_links` are of the step that DDP was measured to make, not of the ratio asked for;
`of_planned`: tokens per second over those that `dilocoxd plan` says. `step_took_s` far above `step_s`: the machine is
too slow for such steps, and the row says little about links. Prints a JSON object for each row; --json has curves of
the loss too, --plot a picture. Needs root, ip and tc.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dilocoxd.store.prepared import CACHE_VARIABLE
from tests.bench import end_when_told
from tests.bench.headline.ddp import DdpRun, run_ddp
from tests.bench.headline.ground import Ground
from tests.bench.headline.legs import LEGS, LegRun, Length, found_leg, run_leg
from tests.bench.headline.picture import draw
from tests.bench.headline.planned import planned_tokens_per_s
from tests.harness.running.network_namespaces import Network

START_S, PHASES_TO_MEET = 120.0, 5
"""Patience until sites have had a round together."""
PUBLISHED = {31.0: 32.0, 357.0: 357.0}
"""Ratio -> times the tokens per second of all-reduce in the DiLoCoX paper (arXiv 2506.21263), for 1.3B and 107B."""


LATE = 1.05
"""Times the length of a step: it computes for longer than that, and does not pause any more."""


def tell(what: str) -> None:
    """A run takes long."""
    sys.stderr.write(f"{what}, load {os.getloadavg()[0]:.1f}\n")


def turn(ground: Ground, options: argparse.Namespace, folder: Path) -> tuple[DdpRun, dict[str, LegRun]]:
    """DDP and each leg once; a leg whose sites do not meet, or have no round in time, is missing."""
    meet_s = START_S + PHASES_TO_MEET * max(options.inner_steps, options.own_inner_steps, 34) * ground.step_s
    length = Length(options.inner_steps, options.rounds, options.leg_s, options.own_inner_steps, meet_s)
    names = options.legs.split(",")
    with Network(f"ch{os.getpid() % 10000}hl", ground.names) as network:
        members = found_leg(network, LEGS[names[0]], ground, length, folder)
        tell(f"DDP: {ground.num_sites} sites, ratio {ground.ratio:g}")
        ddp = run_ddp(network, ground, members[0].run_dir, options.ddp_steps, options.ddp_s)
    found = {}
    for name in names:
        tell(f"{name}: {ground.num_sites} sites, ratio {ground.ratio:g}")
        with Network(f"ch{os.getpid() % 10000}hl", ground.names) as network:  # links are free again
            members = found_leg(network, LEGS[name], ground, length, folder)
            try:
                found[name] = replace(
                    run_leg(network, members, ddp.bit_per_s, length),
                    planned_tokens_per_s=planned_tokens_per_s(members[0].run_dir, ground, ddp.bit_per_s),
                )
            except AssertionError as error:  # the other legs may be hours of work
                tell(f"{name} FAILED: {error}")
                continue
        if found[name].step_took_s > LATE * ground.step_s:
            took = f"steps of {ground.step_s:g} s took {found[name].step_took_s:.3f} s"
            tell(f"{name}: {took}; this machine wants a longer --step-s, or fewer --sites")
    return ddp, found


def rows_of(ground: Ground, turns: list[tuple[DdpRun, dict[str, LegRun]]]) -> list[dict[str, Any]]:
    """A row for DDP and one for each leg; medians over the turns, ratios of the same turn."""
    step_s = statistics.median(ddp.step_s for ddp, _ in turns)
    cell = {"sites": ground.num_sites, "ratio": ground.ratio, "step_s": ground.step_s, "turns": len(turns)}
    first = turns[0][0]
    rows: list[dict[str, Any]] = [
        cell | {
            "way": "DDP",
            "tokens_per_s": round(statistics.median(ground.tokens_per_step / ddp.step_s for ddp, _ in turns), 2),
            "measured_ratio": round(step_s / ground.step_s - 1, 1),
            "steps_measured": len(first.steps_s),
            "mbit_per_s": round(first.bit_per_s / 1e6, 3),
            "parameters": first.num_parameters,
            "work_share": round(first.work_s / ground.step_s, 3),
            "loss": round(first.curve[-1][1], 4),
            "curve": first.curve,
        }
    ]  # fmt: skip
    end_s = min((run.curve[-1][0] for _, found in turns for run in found.values()), default=0.0)
    for name in dict.fromkeys(name for _, found in turns for name in found):
        runs = [found[name] for _, found in turns if name in found]
        times = statistics.median(
            found[name].tokens_per_s * ddp.step_s / ground.tokens_per_step for ddp, found in turns if name in found
        )  # fmt: skip
        rows.append(
            cell | {
                "way": name,
                "tokens_per_s": round(statistics.median(run.tokens_per_s for run in runs), 2),
                "times_ddp": round(times, 1),
                "goal": round(0.97 * step_s / ground.step_s, 1),
                "of_no_links": round(times * ground.step_s / step_s, 3),
                "published": PUBLISHED.get(ground.ratio),
                "of_planned": round(statistics.median(run.of_planned for run in runs), 3),
                "step_took_s": round(statistics.median(run.step_took_s for run in runs), 3),
                "idle_share": round(statistics.median(run.idle_share for run in runs), 4),
                "phase_steps": [min(runs[0].phases), round(statistics.median(runs[0].phases)), max(runs[0].phases)],
                "rounds": runs[0].rounds,
                "exchange_s": round(statistics.median(run.exchange_s for run in runs), 2),
                "bytes_per_round": runs[0].bytes_per_round,
                "loss_at_s": round(end_s, 1),
                "loss": round(loss_at(runs[0].curve, end_s), 4),
                "curve": runs[0].curve,
            }
        )  # fmt: skip
    return rows


def loss_at(curve: tuple[tuple[float, float], ...], seconds: float) -> float:
    """The newest that was known then."""
    return [loss for at, loss in curve if at <= seconds][-1]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.headline", description=__doc__)
    parser.add_argument("--sites", default="2,3", help="up to 8")
    parser.add_argument("--ratios", default="31,357", help="all-reduce over inner step; the paper's")
    parser.add_argument("--legs", default=",".join(LEGS))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.25, help="length of an inner step")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--batch-sequences", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=32)
    parser.add_argument("--inner-steps", type=int, default=125, help="H, but for `default`, which has its own")
    parser.add_argument("--own-inner-steps", type=int, default=0, help="H of `default`; 0: that of the preset")
    parser.add_argument("--rounds", type=int, default=4, help="measured in a leg")
    parser.add_argument("--leg-s", type=float, default=240.0, help="fewer rounds are measured then, at least one")
    parser.add_argument("--ddp-steps", type=int, default=5)
    parser.add_argument("--ddp-s", type=float, default=200.0, help="fewer steps are made then, at least one")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    if unknown := sorted(set(options.legs.split(",")) - set(LEGS)):
        parser.error(f"--legs {', '.join(unknown)}: use some of {', '.join(LEGS)}")
    if max(map(int, options.sites.split(","))) > 8 or min(map(int, options.sites.split(","))) < 2:
        parser.error(f"--sites {options.sites}: use 2 to 8")
    return options


def main() -> int:
    """0, or 1 if there is a leg without a row."""
    options = parse()
    end_when_told()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dilocoxd-headline-") as name:
        os.environ.setdefault(CACHE_VARIABLE, str(Path(name) / "cache"))
        for num_sites in map(int, options.sites.split(",")):
            for ratio in map(float, options.ratios.split(",")):
                size = options.hidden_size, options.batch_sequences, options.seq_len, options.vocab_size
                ground = Ground(num_sites, ratio, options.step_s, *size)
                found = rows_of(ground, [turn(ground, options, Path(name)) for _ in range(options.turns)])
                for row in found:
                    shown = {key: value for key, value in row.items() if key != "curve"}
                    print(json.dumps(shown | {"load_1min": round(os.getloadavg()[0], 1)}), flush=True)
                rows += [row | {"ground": asdict(ground)} for row in found]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        draw(rows, options.plot)
    num_cells = len({(row["sites"], row["ratio"]) for row in rows})
    return int(len(rows) < num_cells * (1 + len(options.legs.split(","))))


if __name__ == "__main__":
    sys.exit(main())
