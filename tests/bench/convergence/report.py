"""The table and the plot of a study."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from dilocoxd.wire.layout import Layout
from tests.bench.convergence.presets import ALL_REDUCE, PRESETS, resolve


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: median over seeds of the loss, of its gap to the best per-step all-reduce of the seed, and the bytes.

    Best: of the settings of all-reduce that have a row. `spread`: from the lowest to the highest gap of a seed.

    `learnt` is how much of what all-reduce learns after the checkpoint the preset learns: a gap in percent of the loss
    looks small where little is left to learn.
    """
    lines = [
        "| preset | H | delay | tau | inner lr | outer | loss | gap | spread | learnt | bytes ratio | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for steps in sorted({row["steps"] for row in rows}):
        chosen = [row for row in rows if row["steps"] == steps]
        base = _baselines(chosen)
        order = list(PRESETS)
        names = sorted({row["preset"] for row in chosen}, key=lambda name: (order.index(name.split("@")[0]), name))
        lines.append(f"| **{steps} steps** | | | | | | | | | | | |")
        lines += [_line(name, [row for row in chosen if row["preset"] == name], base) for name in names]
    return "\n".join(lines)


def _baselines(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By seed."""
    tried = [row for row in rows if row["preset"].partition("@")[0] == ALL_REDUCE]
    tried.sort(key=lambda row: float(row["validation_loss"]), reverse=True)
    return {row["seed"]: row for row in tried}


def _line(name: str, rows: list[dict[str, Any]], base: dict[int, dict[str, Any]]) -> str:
    losses = [row["validation_loss"] for row in rows]
    pairs = [(row, base[row["seed"]]) for row in rows if row["seed"] in base]
    gap = learnt = spread = "n/a"
    if pairs:
        gaps = [gap_percent(row, to) for row, to in pairs]
        gap = f"{statistics.median(gaps):+.2f}%"
        learnt = f"{statistics.median(100 * _learnt(row) / _learnt(to) for row, to in pairs):.0f}%"
        spread = f"{min(gaps):+.2f} to {max(gaps):+.2f}" if len(gaps) > 1 else "n/a"
    preset = resolve(name)
    about = f"1 | none | 0 | {preset.inner} {preset.inner_lr:g} | -"
    if not preset.is_per_step:
        delay = f"streaming {preset.fragments}" if preset.fragments else preset.delay
        rates = f"{preset.inner} {preset.inner_lr:g} | {preset.optimizer} {preset.lr:g}/{preset.momentum:g}"
        about = f"{preset.inner_steps} | {delay} | {preset.tau:g} | {rates}"
    loss = statistics.median(losses)
    shown = f"{loss:.3f}" if math.isfinite(loss) else "diverged"
    return f"| {name} | {about} | {shown} | {gap} | {spread} | {learnt} | {rows[0]['bytes_ratio']:.0f} | {len(rows)} |"


def gap_percent(row: dict[str, Any], to: dict[str, Any]) -> float:
    """How much higher the loss of `row` is."""
    return 100 * (float(row["validation_loss"]) / float(to["validation_loss"]) - 1)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a reader of the file wants first: `validation_loss` and `bytes_ratio` (medians over seeds) if all rows are
    seeds of one run, else nothing."""
    if len({(row["preset"], row["steps"]) for row in rows}) != 1:
        return {}
    fields = ("validation_loss", "bytes_ratio")
    return {"preset": rows[0]["preset"]} | {key: statistics.median(row[key] for row in rows) for key in fields}


def _learnt(row: dict[str, Any]) -> float:
    return float(row["checkpoint_loss"]) - float(row["validation_loss"])


def bytes_table(layouts: dict[str, Layout]) -> str:
    """Markdown, by formula: bits per parameter and round of one contribution, and per-step fp32 all-reduce over that.

    A result of the same length comes back; an all-reduce moves every gradient twice as well.
    """
    columns = "".join(f" bits on {name} | ratio |" for name in layouts)
    lines = [f"| preset | H |{columns}", "|---|---|" + "---|---|" * len(layouts)]
    for name, preset in PRESETS.items():
        cells = ""
        for layout in layouts.values():
            per_pass = preset.transform(layout).payload_table()
            bits = 8 * sum(map(sum, per_pass)) / layout.numel
            cells += f" {bits:.3g} | {32 * preset.inner_steps / bits:.0f} |"
        lines.append(f"| {name} | {preset.inner_steps} |{cells}")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Loss against bytes, one point per preset: the median over seeds, with a bar from the lowest to the highest.

    Only the length of run that has most rows; what ended above its checkpoint is left out, or nothing else were seen.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    steps = statistics.mode(row["steps"] for row in rows)
    drawn = [row for row in rows if row["steps"] == steps and row["validation_loss"] <= row["checkpoint_loss"]]
    figure, axes = pyplot.subplots(figsize=(11, 6))
    axes.set_prop_cycle(color=[mpl.colormaps["tab20"](index) for index in range(20)])
    for name in dict.fromkeys(row["preset"] for row in drawn):
        own = [row for row in drawn if row["preset"] == name]
        losses, ratio = [row["validation_loss"] for row in own], own[0]["bytes_ratio"]
        loss = statistics.median(losses)
        bar = [[loss - min(losses)], [max(losses) - loss]]
        mark = "x" if resolve(name).is_control else "o"
        axes.errorbar(ratio, loss, bar, fmt=mark, capsize=3, label=f"{loss:.3f}  {name}")
    axes.set_xscale("log")
    axes.set_xlabel("bytes of per-step fp32 all-reduce / bytes sent")
    axes.set_ylabel(f"validation loss of the shared model after {steps} steps")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=labels.__getitem__, reverse=True)
    axes.legend(
        [handles[i] for i in order], [labels[i] for i in order], fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5)
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
