"""`python -m tests.bench.convergence [--preset NAME ...] [--seeds K] [--tokens T] [--json OUT]`.

Without --preset the whole study. Finished runs in OUT are not repeated. Writes OUT, OUT with .md and, if matplotlib is
there, .png; prints the table.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from rich.progress import Progress

from tests.bench.convergence.presets import BASELINES, PRESETS
from tests.bench.convergence.report import plot, table
from tests.bench.convergence.sites import Task
from tests.bench.convergence.study import SITES, Results, run_preset


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.convergence", description=__doc__)
    parser.add_argument("--preset", action="append", choices=[*BASELINES, *PRESETS], help="repeat for several")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2_048_000, help="of all sites together")
    parser.add_argument("--json", type=Path, default=Path("convergence.json"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    task = Task()
    steps = max(1, arguments.tokens // (len(SITES) * task.batch_sequences * task.seq_len))
    results = Results(arguments.json, task)
    data = task.data()
    names = arguments.preset or [*BASELINES, *PRESETS]
    with Progress() as bar:
        for seed in range(arguments.seeds):
            for name in names:
                if results.has(name, seed, steps):
                    continue
                line = bar.add_task(f"{name} seed {seed}", total=steps)
                row = run_preset(task, data, name, seed, steps, lambda done, at=line: bar.update(at, completed=done))
                bar.update(line, completed=steps, visible=False)
                results.add(row)
                print(
                    f"{name} seed {seed}: loss {row['validation_loss']:.4f}, ratio {row['bytes_ratio']:.0f}", flush=True
                )
    text = table(results.rows)
    arguments.json.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        plot(results.rows, arguments.json.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
