"""What liars cost: `python -m tests.bench.convergence.liars [--task small] [--rounds 8] [--json OUT]`.

Every row is one run of the standard convergence task on the engine: f of M sites attack, one codec, one defence. The
figure is the validation loss of the shared model against that of the run in which all M are honest and nothing is
clipped. Rows that are in OUT are not repeated; the most telling ones come first. `--once`: one attack, two rounds, for
CI. `--page`: write what RESULTS hold into docs/lab/benchmarks.md, and run nothing. Source of attacks: ALIE arXiv
1902.06156; min-max NDSS 2021 (Shejwalkar and Houmansadr).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from dilocoxd.compress.codec import NotEncodableError
from dilocoxd.outer.clipping import CENTERED_KAPPA
from dilocoxd.outer.optimizers import outer_from_name
from tests.bench.convergence.presets import Preset
from tests.bench.convergence.sites import TASKS, Run, Site
from tests.bench.convergence.study import Start
from tests.reference.engine import Engine, Recipe

KAPPA = 2.5
INNER_STEPS = 10
INNER_LR = 2e-3
ALIE_Z = 1.5
TOKEN_LIE = 9
FRACTIONS = ((0, 4), (1, 4), (1, 8), (2, 8))
CODECS = {
    "int4": Preset("int4"),
    "int2": Preset("int2"),
    "topk": Preset("topk:64", beta=0.95),
    "lowrank": Preset("int4", lowrank=16),
}
DEFENCES = ("none", "clip", "drop", "centered", "both")
"""drop (the default of a run): clip, and contrary shares are left out; both: centered clipping and that."""
DENSE = ("int4", "int2")
"""Centered clipping is for them: a top-k share is zero where another site's is not, a low-rank one has no vector."""
RESULTS = {
    name: Path(__file__).parent / "results" / file
    for name, file in (("small", "liars.json"), ("toy", "liars-toy.json"))
}
"""By task."""
PAGE = Path(__file__).parents[3] / "docs" / "lab" / "benchmarks.md"
Updates = Mapping[str, Tensor]
Attack = Callable[["Liars", Updates, Tensor], Tensor]


@dataclass(slots=True)
class Liars:
    """What those who attack together remember: the first update that one of them made."""

    first: Tensor | None = None


def flip(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    return -10 * own


def huge(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    return -1e6 * own


def token_lie(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    return -own


def stale(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    if liars.first is None:
        liars.first = own.clone()
    return liars.first


def copied(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    return next(iter(honest.values())).clone()


def alie(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    """A little is enough: so far from the mean that it hurts, so near that it hides in the spread."""
    stacked = torch.stack(list(honest.values()))
    return stacked.mean(0) - ALIE_Z * stacked.std(0)


def min_max(liars: Liars, honest: Updates, own: Tensor) -> Tensor:
    """Against the mean, as far as no honest site is nearer to the farthest honest one."""
    stacked = torch.stack(list(honest.values()))
    mean = stacked.mean(0)
    direction = -mean / mean.norm()
    farthest = max(float((a - b).norm()) for a, b in itertools.combinations(stacked, 2))
    low, high = 0.0, 10 * farthest
    for _ in range(30):
        middle = (low + high) / 2
        is_hidden = max(float((mean + middle * direction - one).norm()) for one in stacked) <= farthest
        low, high = (middle, high) if is_hidden else (low, middle)
    return mean + low * direction


ATTACKS: dict[str, Attack] = {
    "sign flip x10": flip,
    "x -1e6": huge,
    "token lie 9x": token_lie,
    "stale": stale,
    "copied": copied,
    "ALIE": alie,
    "min-max": min_max,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `attack` empty: all are honest."""

    codec: str
    defence: str
    liars: int
    sites: int
    attack: str = ""


def cases() -> list[Case]:
    """All of them, the most telling first: every attack on one codec, then the other codecs."""
    found = [Case(codec, "none", 0, m) for m in (4, 8) for codec in CODECS]
    found += [Case(codec, defence, 0, 4) for codec in CODECS for defence in DEFENCES[1:]]
    found += [Case("int4", defence, 0, 8) for defence in DEFENCES[1:]]
    rows = list(itertools.product(((1, 4), (2, 8), (1, 8)), CODECS))
    for (f, m), codec in sorted(rows, key=lambda row: row[1] != "int4" and row[0] != (1, 4)):
        found += [Case(codec, defence, f, m, attack) for attack in ATTACKS for defence in DEFENCES]
    return [case for case in found if is_possible(case)]


def is_possible(case: Case) -> bool:
    """There is such a defence for this codec."""
    return case.defence not in ("centered", "both") or case.codec in DENSE


def run_case(start: Start, case: Case, rounds: int) -> float:
    """Validation loss of the shared model at the end; inf where training broke down."""
    names = [chr(ord("a") + index) for index in range(case.sites)]
    lying = names[: case.liars]
    preset = CODECS[case.codec]
    recipe = Recipe(
        preset.transform(start.task.layout()),
        outer_from_name("sgd", 1.0, 0.0),
        preset.error_feedback,
        clip_kappa={"none": 0.0, "clip": KAPPA, "drop": KAPPA}.get(case.defence, CENTERED_KAPPA),
        is_centered=case.defence in ("centered", "both"),
        drops_contrary=case.defence in ("drop", "both"),
    )
    engine = Engine.start(recipe, start.theta, names)
    run = Run(start.task, start.data, start.seed, rounds * INNER_STEPS, INNER_LR, min_lr_ratio=0.3)
    sites = {name: Site(run, name) for name in names}
    tokens = {name: TOKEN_LIE if name in lying and case.attack == "token lie 9x" else 1 for name in names}
    liars = Liars()
    for index in range(rounds):
        updates = {}
        for name, site in sites.items():
            theta = engine.anchor.clone()
            site.train(theta, index * INNER_STEPS, INNER_STEPS)
            updates[name] = engine.anchor - theta
        honest = {name: update for name, update in updates.items() if name not in lying}
        for name in lying:
            updates[name] = ATTACKS[case.attack](liars, honest, updates[name])
            engine.feedback[name].zero_()  # a liar has no books to keep
        try:
            engine.commit(engine.offer(updates, tokens))
        except NotEncodableError:
            return math.inf
    loss = sites[names[-1]].validation_loss(engine.anchor)
    return loss if math.isfinite(loss) else math.inf


def report(rows: list[dict[str, object]]) -> str:
    """Markdown: loss over the honest, unclipped run of as many sites, in per cent."""
    losses = {Case(**row["case"]): float(row["loss"]) for row in rows}  # type: ignore[arg-type]
    lines = ["| f of M | attack | codec | none | clip | drop | centered | both |", "|" + "---|" * 8]
    keys = {(c.liars, c.sites, c.attack, c.codec) for c in losses}
    for f, m, attack, codec in sorted(keys, key=_place):
        honest = losses.get(Case(codec, "none", 0, m))
        row = [Case(codec, defence, f, m, attack) for defence in DEFENCES]
        cells = [_percent(losses.get(case), honest) if is_possible(case) else "n/a" for case in row]
        lines.append(f"| {f}/{m} | {attack or '-'} | {codec} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _place(key: tuple[int, int, str, str]) -> tuple[int, ...]:
    f, m, attack, codec = key
    return f, m, ["", *ATTACKS].index(attack), list(CODECS).index(codec)


def rendered(page: str, task: str, rows: list[dict[str, object]]) -> str:
    """The page with the table of these rows, which this task gave."""
    block = re.compile(rf"(<!-- liars {task} -->\n).*?(\n<!-- /liars {task} -->)", re.DOTALL)
    return block.sub(lambda found: f"{found[1]}{report(rows)}{found[2]}", page)


def _percent(loss: float | None, honest: float | None) -> str:
    if loss is None or honest is None:
        return ""
    if loss > 3 * honest:
        return "diverged"
    return f"{100 * (loss / honest - 1):+.2f}%"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.convergence.liars", description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="small")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, default=Path("liars.json"))
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so long")
    parser.add_argument("--once", action="store_true", help="one attack against each defence, two rounds")
    parser.add_argument("--page", action="store_true", help="only write the page of what was measured")
    arguments = parser.parse_args()
    if arguments.page:
        for name, path in RESULTS.items():
            rows = json.loads(path.read_text(encoding="utf-8"))
            PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), name, rows), encoding="utf-8")
        return
    torch.set_num_threads(1)
    wanted, rounds = cases(), arguments.rounds
    if arguments.once:
        wanted, rounds = [Case("int4", "none", 0, 4), *(Case("int4", d, 1, 4, "x -1e6") for d in DEFENCES)], 2
    task = TASKS[arguments.task]
    start = Start.of(task, task.data(), 0, lambda done: None)
    kept = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else []
    done = {Case(**row["case"]) for row in kept}
    ends_at = time.monotonic() + 60 * arguments.minutes
    for case in wanted:
        if case in done or time.monotonic() > ends_at:
            continue
        began = time.process_time()
        loss = run_case(start, case, rounds)
        kept.append({"case": asdict(case), "loss": loss, "cpu_s": round(time.process_time() - began, 1)})
        arguments.json.write_text(json.dumps(kept, indent=0), encoding="utf-8")
        print(case, f"{loss:.4f}", flush=True)
    print(report(kept))


if __name__ == "__main__":
    main()
