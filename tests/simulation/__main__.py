"""Run seeded schedules: `python -m tests.simulation --first-seed S --num-seeds N`; exit 1 with the failing seeds."""

import argparse
import collections
import sys
import time
from pathlib import Path

from tests.simulation.schedule import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--num-seeds", type=int, default=200)
    parser.add_argument("--transcript", type=Path, help="write the transcript of the first failing (or only) seed here")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    options = parser.parse_args()
    started = time.monotonic()
    totals: collections.Counter[str] = collections.Counter()
    failed = []
    for seed in range(options.first_seed, options.first_seed + options.num_seeds):
        outcome = run_seed(seed, keeps_transcript=options.num_seeds == 1)
        totals.update(
            rounds=outcome.rounds, attempts_failed=outcome.attempts_failed, recoveries=outcome.recoveries,
            forks=outcome.forks, events=outcome.num_events,
        )  # fmt: skip
        if outcome.problem:
            failed.append(seed)
            print(f"seed {seed}: {outcome.problem}")
            print(f"  python -m tests.simulation --first-seed {seed} --num-seeds 1 --transcript /dev/stdout")
            if not options.keep_going:
                break
    if options.transcript and (failed or options.num_seeds == 1):
        seed = failed[0] if failed else options.first_seed
        options.transcript.write_text("\n".join(run_seed(seed, keeps_transcript=True).transcript) + "\n")
    spent = time.monotonic() - started
    print(f"{options.num_seeds} seeds, {len(failed)} failed, {spent:.1f} s, {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
