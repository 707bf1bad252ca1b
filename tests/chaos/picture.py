"""The picture of a soak: heights with the faults, and the loss by tokens beside that of the undisturbed run."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

MARKERS = {
    "kill_site": "X",
    "kill_daemon": "x",
    "kill_worker": "1",
    "freeze": "s",
    "cut": "|",
    "cut_pair": ":",
    "unplug": "_",
    "wipe": "D",
}


def draw(values: dict[str, Any], path: Path) -> None:
    """Write a PNG."""
    figure, (heights, losses) = plt.subplots(2, 1, figsize=(12, 9), height_ratios=(3, 2), layout="constrained")
    shown = values["heights"]
    names = sorted(shown[0][1]) if shown else []
    for name in names:
        heights.plot([at for at, _ in shown], [by_site[name] for _, by_site in shown], label=f"site {name}", lw=1)
    for kind, marker in MARKERS.items():
        found = [fault for fault in values["fault_list"] if fault["kind"] == kind]
        if found:
            places = ([fault["at_s"] for fault in found], [fault["height"] for fault in found])
            heights.scatter(*places, marker=marker if marker != ":" else "d", s=30, label=kind, color="black", lw=1)
    heights.set_xlabel("seconds")
    heights.set_ylabel("committed outer steps")
    heights.legend(fontsize=7, ncols=2)
    for name, label in (("curve", "under faults"), ("reference_curve", "undisturbed")):
        curve = values.get(name) or []
        losses.plot([tokens for tokens, _ in curve], [loss for _, loss in curve], label=label, lw=1)
    losses.set_xlabel("tokens in the chain")
    losses.set_ylabel("validation loss, nats per token")
    losses.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
