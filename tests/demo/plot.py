"""The picture of a demo: losses, and what each site did when."""

from pathlib import Path

import matplotlib

from tests.demo.history import SiteHistory
from tests.demo.report import merged_rounds

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

KIND_COLOURS = {"compute": "#8fbc8f", "exchange": "#4169e1", "apply": "#ffa500", "idle": "#dc143c"}
KIND_ROWS = {"compute": 0.3, "exchange": -0.05, "apply": -0.05, "idle": 0.3}
SITE_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")


def smoothed(values: list[float], span: int = 10) -> list[float]:
    """Running means over up to `span` values."""
    return [sum(values[max(0, i - span + 1) : i + 1]) / min(span, i + 1) for i in range(len(values))]


def draw(histories: dict[str, SiteHistory], path: Path, *, unigram_entropy: float, marks: dict[str, float]) -> None:
    """Write a PNG. `marks`: text -> unix time, drawn as vertical lines in the timeline."""
    figure, (losses, timeline) = plt.subplots(2, 1, figsize=(12, 9), height_ratios=(3, 2), layout="constrained")
    start = min((t for h in histories.values() for t in h.inner), default=0.0)
    draw_losses(losses, histories, start, unigram_entropy)
    draw_timeline(timeline, histories, start)
    for axes in (losses, timeline):
        axes.set_xlabel("seconds since the first inner step")
        for text, unix in marks.items():
            axes.axvline(unix - start, color="black", linestyle=":", linewidth=1)
            axes.annotate(text, (unix - start, 1), xycoords=("data", "axes fraction"), fontsize=8, va="bottom")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_losses(axes: Axes, histories: dict[str, SiteHistory], start: float, unigram_entropy: float) -> None:
    """Inner losses of the sites, validation losses of the shared model, and what order-blind guessing reaches."""
    committed = {k: row["committed_at"] for k, row in merged_rounds(histories).items()}
    validation: dict[int, float] = {}
    for history, colour in zip(histories.values(), SITE_COLOURS, strict=False):
        times = sorted(history.inner)
        axes.plot(
            [t - start for t in times],
            smoothed([history.inner[t][1] for t in times]),
            color=colour,
            alpha=0.7,
            linewidth=1,
            label=f"site {history.name}, inner loss (mean of 10)",
        )
        validation.update(history.validation)
    shown = [k for k in sorted(validation) if k == 0 or k - 1 in committed]
    axes.plot(
        [0.0 if k == 0 else committed[k - 1] - start for k in shown],
        [validation[k] for k in shown],
        "k.-",
        label="shared model, validation loss",
    )
    axes.axhline(unigram_entropy, color="grey", linestyle="--", linewidth=1, label="unigram entropy of the text")
    axes.set_ylabel("nats per token")
    axes.set_title("losses", loc="left")
    axes.legend(fontsize=8)


def draw_timeline(axes: Axes, histories: dict[str, SiteHistory], start: float) -> None:
    """Compute and exchange of each site as bars; exchanges lie below the computing they hide behind."""
    names = list(histories)
    for row, name in enumerate(reversed(names)):
        for kind, colour in KIND_COLOURS.items():
            bars = [
                (s["start"] - start, max(s["end"] - s["start"], 0.02))
                for s in histories[name].spans.values()
                if s["kind"] == kind
            ]
            axes.broken_barh(bars, (row + KIND_ROWS[kind], 0.3), facecolors=colour)
    axes.set_yticks([i + 0.3 for i in range(len(names))], [f"site {n}" for n in reversed(names)])
    axes.legend([Rectangle((0, 0), 1, 1, color=c) for c in KIND_COLOURS.values()], list(KIND_COLOURS), fontsize=8)
    axes.set_title("what each site did", loc="left")
