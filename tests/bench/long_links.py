"""What long links cost: plain TCP over the test internet, then lives of three daemons for each round trip and loss.

`python -m tests.bench.long_links [--rtts-ms 0,20,100,300] [--losses 0,1] [--phase-s 4] [--rounds 3] [--mib 256]
[--progress-timeout-s 20]`.
Times of lives are seconds; `round trips` is the cost of a round above that of the first row, in round trips.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from tests.bench import end_when_told
from tests.harness.internet.conditions import rtt
from tests.harness.internet.life import live
from tests.harness.internet.network import Internet
from tests.harness.internet.probes import bulk_bytes_per_s, round_trips_s

STREAMS = (1, 16)
PREFIX = f"ch{os.getpid() % 10000}ll"


def links(rtts_s: list[float], mib: int) -> None:
    """Print what plain sockets get."""
    print("| round trip | measured | Mbit/s, 1 connection | 16 connections |\n|---|---|---|---|", flush=True)
    with Internet(PREFIX, "ab", rtt(0.0)) as internet:
        for seconds in rtts_s:
            internet.set(rtt(seconds))
            measured = statistics.median(round_trips_s(internet, "a", "b"))
            speeds = [8e-6 * bulk_bytes_per_s(internet, "a", "b", mib, streams) for streams in STREAMS]
            shown = " | ".join(f"{speed:.0f}" for speed in speeds)
            print(f"| {1000 * seconds:.0f} ms | {1000 * measured:.1f} ms | {shown} |", flush=True)


def lives(rtts_s: list[float], losses: list[float], phase_s: float, num_rounds: int, progress_timeout_s: float) -> None:
    """Print a row for each life; a life in which a peer was suspected wrongly says so."""
    print("\n| round trip | loss | exchange | round trips | join | killed | back | suspicions |\n" + "|---" * 8 + "|")
    base_s = 0.0
    for seconds in rtts_s:
        for loss in losses:
            with tempfile.TemporaryDirectory() as folder:
                life = live(PREFIX, Path(folder), rtt(seconds, loss), phase_s, num_rounds, progress_timeout_s)
            assert len(set(life.heads)) == 1, "one chain"
            base_s = base_s or life.exchange_s
            trips = f"{(life.exchange_s - base_s) / seconds:.1f}" if seconds else "-"
            times = (
                f"{life.exchange_s:.2f} | {trips} | {life.joined_s:.1f} | {life.killed_s:.1f} | {life.returned_s:.1f}"
            )
            print(f"| {1000 * seconds:.0f} ms | {loss:.0%} | {times} | {len(life.suspicions)} |", flush=True)
            for text in life.suspicions:
                print(f"  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtts-ms", default="0,20,100,300")
    parser.add_argument("--losses", default="0,1", help="percent")
    parser.add_argument("--phase-s", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3, help="0: plain links only")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--progress-timeout-s", type=float, default=20.0, help="5 are of the preset for one machine")
    options = parser.parse_args()
    rtts_s = [float(text) / 1000 for text in options.rtts_ms.split(",")]
    links(rtts_s, options.mib)
    if options.rounds:
        losses = [float(text) / 100 for text in options.losses.split(",")]
        lives(rtts_s, losses, options.phase_s, options.rounds, options.progress_timeout_s)


if __name__ == "__main__":
    end_when_told()
    main()
