"""Run seeded schedules: `python -m tests.simulation --first-seed S --num-seeds N [--jobs J]`; exit 1 if any fails."""

import argparse
import collections
import sys
import time
from pathlib import Path

from tests.simulation.batches import run_many, write_transcript
from tests.simulation.liars import TRUST_KINDS
from tests.simulation.schedules.seeded import Variant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--num-seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--final-depth", type=int, default=0, help="entries that follow a final one (R28); 0: none is")
    parser.add_argument("--coalitions", action="store_true", help="just under a third of 4 to 10 peers lie in each")
    parser.add_argument("--gone", action="store_true", help="who crashes is found gone at once, sometimes who is there")
    parser.add_argument("--liars", action="store_true", help="only the seeds in whose schedules somebody lies")
    parser.add_argument("--trust", action="store_true", help="liars that abuse trust (tests/simulation/liars.py)")
    parser.add_argument("--only", default="", choices=TRUST_KINDS, help="with --trust: only this kind of them")
    parser.add_argument("--transcript", type=Path, help="write the transcript of the first seed here, and run only it")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    options = parser.parse_args()
    variant = Variant(
        final_depth=options.final_depth,
        has_coalition=options.coalitions,
        tells_gone=options.gone,
        needs_liar=options.liars,
        abuses_trust=options.trust,
        only_kind=options.only,
    )
    if options.transcript:
        write_transcript(options.first_seed, options.transcript, variant)
        options.num_seeds = 1
    started = time.monotonic()
    failed, done = run_many(
        options.first_seed, options.num_seeds, variant, jobs=options.jobs, stops_early=not options.keep_going
    )
    totals: collections.Counter[str] = collections.Counter()
    for outcome in done:
        totals.update(
            rounds=outcome.rounds, attempts_failed=outcome.attempts_failed, recoveries=outcome.recoveries,
            forks=outcome.forks, events=outcome.num_events,
        )  # fmt: skip
    spent = time.monotonic() - started
    print(f"{len(done)} seeds, {len(failed)} failed, {spent:.1f} s, {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
