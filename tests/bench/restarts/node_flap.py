"""A cable that is cut for some seconds, and mended: `python -m tests.bench.restarts.node_flap`, as root.

One site whose three stages train on three machines, each a network namespace, without a spare node. The cable of one is
cut in mid-phase and mended after `--seconds`. With `--grace 0` trainers end after 5 s of silence and start again when
the node is back; else they go on where they were (cluster.head_grace_s). Seconds from the cut: noticed (the site says
that it misses the node), training (the first inner step after it was mended); and inner steps that are trained again.
`--head`: the head's daemon is killed and started at once instead.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench import end_when_told
from tests.bench.restarts.node_loss import LOOK_S, Bench, running

NAMES = ("n1", "n2")
MODEL = {
    "model.hidden_size": "1280",
    "model.intermediate_size": "3456",
    "model.num_heads": "16",
    "model.num_kv_heads": "16",
    "strategy.inner_steps": "30",
    "strategy.segment_elements_max": "1048576",
    "parallel.activation_checkpointing": '"none"',
}
"""60 million parameters, 40 of them on the nodes."""
STEP_BEFORE = 8
"""Inner step of a phase that is reached before the cut."""


def _phase(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = status.get("phase") or {}
    return found


def flap(bench: Bench, name: str, seconds: float) -> tuple[float, float, int]:
    """Noticed, training, and inner steps of the phase that are lost."""
    bench.until(lambda status: _phase(status).get("inner_step", 0) >= STEP_BEFORE, "the middle of a phase")
    before = bench.site.state()
    began = time.monotonic()
    bench.network.cut(name)
    bench.until(lambda status: _misses(status), "the silence is noticed")
    noticed = time.monotonic() - began
    while time.monotonic() - began < seconds:
        time.sleep(LOOK_S)
    bench.network.heal(name)
    steps = bench.site.state()["totals"]["inner_steps"]
    bench.until(lambda status: status.get("totals", {}).get("inner_steps", 0) > steps, "it trains")
    training, after = time.monotonic() - began, bench.site.state()
    is_same = _generation(before) == _generation(after)
    return noticed, training, 0 if is_same else _phase(before)["inner_step"]


def _misses(status: dict[str, Any]) -> bool:
    return any(stage["state"] == "waiting" for stage in (status.get("nodes") or {}).get("stages", []))


def _generation(status: dict[str, Any]) -> int:
    return int(status["workers"]["trainer"]["generation"])


def main() -> None:
    """One site, some cuts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2, help="cuts (default: 2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="each for so long (default: 10)")
    parser.add_argument("--grace", default="60", help="cluster.head_grace_s (default: 60)")
    parser.add_argument("--head", action="store_true", help="kill the head's daemon instead")
    parser.add_argument("--small", action="store_true", help="a model that loads at once")
    options = parser.parse_args()
    model = {"strategy.inner_steps": MODEL["strategy.inner_steps"]} if options.small else MODEL
    more = {**model, "cluster.head_grace_s": options.grace}
    with tempfile.TemporaryDirectory(prefix="node-flap-") as folder, running(Path(folder), NAMES, more) as bench:
        for _ in range(options.times):
            if options.head:
                print("head", bench.restart_head(), flush=True)
                continue
            noticed, training, again = flap(bench, bench.one_that_trains(), options.seconds)
            print(f"| {options.grace} | {options.seconds:g} | {noticed:.1f} | {training:.1f} | {again} |", flush=True)
        print(f"step {bench.site.state()['phase']}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    end_when_told()
    main()
