"""`python -m tests.fuzz [--minutes M] [--seed S] [--only TEXT]`: every decoder in turn; exit 1 if one fails."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import all_targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Feed every decoder with hostile bytes.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all decoders together")
    parser.add_argument("--seed", type=int, default=0, help="first seed; another one, other inputs")
    parser.add_argument("--only", default="", help="only decoders whose name contains this text")
    given = parser.parse_args()
    targets = [target for target in all_targets() if given.only in target.name]
    share = given.minutes * 60 / max(1, len(targets))
    failed, total = 0, 0
    for target in targets:
        tally = fuzz(target, share, given.seed)
        total += tally.num_inputs
        outcomes = ", ".join(f"{code} {count}" for code, count in tally.outcomes.most_common())
        print(f"{target.name:20} {tally.num_inputs:9,} inputs, +{tally.growth_mib:.0f} MiB: {outcomes}", flush=True)
        if tally.problem:
            failed += 1
            print(f"{target.name:20} FAILED with --seed {given.seed}: {tally.problem}", flush=True)
    print(f"{total:,} inputs, {len(targets)} decoders, {failed} failed")
    return 1 if failed or not targets else 0


if __name__ == "__main__":
    sys.exit(main())
