"""`python -m tests.bench.convergence [--preset NAME ...] [--seeds K] [--tokens T] [--json OUT]`.

Without --preset the whole study. Finished runs in OUT are not repeated. Writes OUT, OUT with .md and, if matplotlib is
there, .png; prints the table.
"""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial
from pathlib import Path

import torch
from rich.progress import Progress, TaskID

from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.wire.layout import make_layout
from tests.bench.convergence.presets import PRESETS, resolve
from tests.bench.convergence.report import bytes_table, plot, table
from tests.bench.convergence.sites import TASKS, Task
from tests.bench.convergence.study import SITES, Results, Start, run_preset

LARGE = ModelConfig(
    kind="native",
    vocab_size=32_000,
    hidden_size=2048,
    num_layers=24,
    num_heads=16,
    num_kv_heads=16,
    intermediate_size=5504,
    seq_len=2048,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.convergence", description=__doc__)
    parser.add_argument("--preset", action="append", help="repeat for several; NAME@FIELD=VALUE,... changes one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=557_056, help="of all sites together")
    parser.add_argument("--task", choices=list(TASKS), default="standard", help="model, batch and checkpoint")
    parser.add_argument("--json", type=Path, default=Path("convergence.json"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bytes", action="store_true", help="only the table of bytes by formula, also for 1.3B")
    arguments = parser.parse_args()
    if arguments.bytes:
        print(bytes_table({"1.1M": TASKS["standard"].layout(), "1.3B": make_layout(param_specs(LARGE), 1 << 20)}))
        return
    for name in arguments.preset or ():
        try:
            resolve(name)
        except (KeyError, ValueError) as error:
            parser.error(f"{name}: {error}; presets are {', '.join(PRESETS)}")
    if arguments.seeds < 1 or arguments.tokens < 1:
        parser.error(f"--seeds {arguments.seeds} --tokens {arguments.tokens}: use at least 1 of each")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)
    task = TASKS[arguments.task]
    steps = max(1, arguments.tokens // (len(SITES) * task.batch_sequences * task.seq_len))
    results = Results(arguments.json, task)
    data = task.data()
    names = arguments.preset or list(PRESETS)
    start = None
    with Progress() as bar:
        for seed, name in ((seed, name) for seed in range(arguments.seeds) for name in names):
            if results.has(name, seed, steps):
                continue
            if start is None or start.seed != seed:
                line = bar.add_task("checkpoint", total=task.checkpoint_steps)
                start = Start.of(task, data, seed, partial(_show, bar, line))
                bar.update(line, visible=False)
            line = bar.add_task(f"{name} seed {seed}", total=steps)
            row = run_preset(start, name, steps, partial(_show, bar, line))
            bar.update(line, completed=steps, visible=False)
            results.add(row)
            print(f"{name} seed {seed}: loss {row['validation_loss']:.4f}, ratio {row['bytes_ratio']:.0f}", flush=True)
            _explain_short(name, steps, task)
    text = table(results.rows)
    arguments.json.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        plot(results.rows, arguments.json.with_suffix(".png"))
    print(text)


def _explain_short(name: str, steps: int, task: Task) -> None:
    preset = resolve(name)
    if not preset.is_per_step and steps < preset.inner_steps:
        tokens = preset.inner_steps * len(SITES) * task.batch_sequences * task.seq_len
        print(f"  {steps} steps are less than a phase of {preset.inner_steps}: its full ratio needs {tokens} tokens")


def _show(bar: Progress, line: TaskID, done: int) -> None:
    bar.update(line, completed=done)


if __name__ == "__main__":
    main()
