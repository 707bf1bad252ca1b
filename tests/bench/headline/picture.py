"""The picture of the headline: losses by wall time, and tokens per second as times those of DDP."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: a line of two pictures for each number of sites and each ratio."""
    cells = list(dict.fromkeys((row["sites"], row["ratio"]) for row in rows))
    figure, places = plt.subplots(len(cells), 2, figsize=(12, 4 * len(cells)), layout="constrained", squeeze=False)
    for (num_sites, ratio), (losses, times) in zip(cells, places, strict=True):
        own = [row for row in rows if (row["sites"], row["ratio"]) == (num_sites, ratio)]
        _losses(losses, own)
        _times(times, [row for row in own if row["way"] != "DDP"])
        losses.set_title(f"{num_sites} sites, an all-reduce of {ratio:g} inner steps", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _losses(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """DDP ends early: it makes a few steps only, and each of them is a point."""
    for row in rows:
        seconds, losses = zip(*row["curve"], strict=True)
        axes.plot(seconds, losses, marker="." if row["way"] == "DDP" else None, lw=1, label=row["way"])
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss, nats per token")
    axes.legend(fontsize=7)


def _times(axes: Axes, rows: list[dict[str, Any]]) -> None:
    axes.barh([row["way"] for row in rows], [row["times_ddp"] for row in rows], color="#4169e1")
    if rows:
        axes.axvline(rows[0]["goal"], color="black", ls=":", lw=1, label=f"goal {rows[0]['goal']:g}")
        if rows[0]["published"]:
            axes.axvline(rows[0]["published"], color="#dc143c", ls=":", lw=1, label="DiLoCoX, as published")
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second / those of DDP")
    axes.legend(fontsize=7)
