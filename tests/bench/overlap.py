"""Do trainers wait for exchanges? `python -m tests.bench.overlap [--ratios 0.2,0.5,0.8] [--delays arrival,phase]`.

Two real sites on loopback with limited upload. One unlimited run measures phase time and payload; then one run per
delay and ratio. Prints one JSON object per site and run: idle seconds of the trainers as a share of wall time
(target < 0.02), measured ratio of exchange to phase, steps by which phases were extended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import end_when_told
from tests.bench.paced import Pair, Setting, add_hidden_size, limit_for, run_pair


def measured(pair: Pair, rounds: int, limit_s: float) -> list[dict[str, Any]]:
    """Figures of both sites after `rounds` more rounds."""
    pair.train(rounds, limit_s)
    return [pair.figures(site) for site in pair.members]


def show(row: dict[str, Any]) -> None:
    json.dump(row | {"load_1min": round(os.getloadavg()[0], 1)}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratios", default="0.2,0.5,0.8")
    parser.add_argument("--delays", default="arrival,phase")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=90.0)
    parser.add_argument("--inner-steps", type=int, default=40)
    parser.add_argument("--dir", type=Path, default=None)
    add_hidden_size(parser)
    arguments = parser.parse_args()
    end_when_told()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        free = Setting("arrival", arguments.inner_steps, hidden_size=arguments.hidden_size)
        base = run_pair(folder / "free", free, lambda pair: measured(pair, min(3, arguments.rounds), arguments.limit_s))
        for row in base:
            show({"delay": "arrival", "asked": 0.0, "upload_bytes_per_s": 0} | row)
        phase_s = statistics.mean(row["phase_s"] for row in base)
        payload = max(row["bytes_sent_per_round"] for row in base)
        for delay in arguments.delays.split(","):
            for text in arguments.ratios.split(","):
                limit = limit_for(float(text), phase_s, payload)
                setting = Setting(delay, arguments.inner_steps, limit, hidden_size=arguments.hidden_size)
                found = run_pair(
                    folder / f"{delay}-{text}",
                    setting,
                    lambda pair: measured(pair, arguments.rounds, arguments.limit_s),
                )
                for row in found:
                    show({"delay": delay, "asked": float(text), "upload_bytes_per_s": limit} | row)
                if found[0]["phase_s"]:
                    # Load changes on a shared machine: the next limit follows the newest phase time.
                    phase_s = statistics.mean(row["phase_s"] for row in found)


if __name__ == "__main__":
    main()
