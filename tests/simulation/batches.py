"""Runs seeds in batches, in one process or several. A module of its own: spawned processes cannot import a __main__.

A failing seed prints the invariant, one line that repeats it, and leaves its transcript in a file.
"""

import functools
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.simulation.schedules.seeded import PLAIN, Outcome, Variant, run_seed

CHUNK = 20
"""Seeds that a process takes at a time."""
PROGRESS_S = 15.0


def run_quietly(seed: int, variant: Variant = PLAIN) -> Outcome:
    """`run_seed`; an exception in the machines or in the simulation is a finding too."""
    try:
        return run_seed(seed, variant)
    except Exception as error:
        return Outcome(seed, f"{type(error).__name__}: {error}", 0, 0, 0, 0, 0, ())


@functools.cache
def _settle() -> None:
    """What was loaded before the first schedule of a process stays, and no collection looks through it again."""
    gc.collect()
    gc.freeze()


def run_chunk(seeds: range, variant: Variant = PLAIN) -> list[Outcome]:
    """Seeds one after the other. Garbage is collected between schedules: their parts refer to each other in circles."""
    _settle()
    gc.disable()
    try:
        outcomes = []
        for seed in seeds:
            outcomes.append(replace(run_quietly(seed, variant), transcript=()))
            gc.collect(1)
        gc.collect()
        return outcomes
    finally:
        gc.enable()


@contextmanager
def outcomes_of(chunks: list[range], jobs: int, variant: Variant = PLAIN) -> Iterator[Iterable[list[Outcome]]]:
    """Results of all chunks in order, computed by `jobs` processes."""
    run = functools.partial(run_chunk, variant=variant)
    if jobs == 1:
        yield map(run, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap(run, chunks)


def run_many(
    first: int, count: int, variant: Variant = PLAIN, *, jobs: int = 1, stops_early: bool = False
) -> tuple[list[Outcome], list[Outcome]]:
    """(failed, all) of `count` seeds but those passed over; tells about progress and failures on standard output."""
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    failed: list[Outcome] = []
    done: list[Outcome] = []
    started = told_at = time.monotonic()
    with outcomes_of(chunks, jobs, variant) as results:
        for number, outcomes in enumerate(results, 1):
            done += [one for one in outcomes if not one.is_passed_over]
            for outcome in [one for one in outcomes if one.problem]:
                failed.append(outcome)
                report(outcome, variant)
            if time.monotonic() - told_at > PROGRESS_S:
                told_at = time.monotonic()
                looked = min(number * CHUNK, count)
                rate = len(done) / (told_at - started)
                print(
                    f"{looked} of {count} seeds, {len(done)} run, {len(failed)} failed, {rate:.1f} a second", flush=True
                )
            if failed and stops_early:
                break
    return failed, done


def report(outcome: Outcome, variant: Variant = PLAIN) -> None:
    """What broke, how to repeat it, and the transcript in a file."""
    path = Path(tempfile.gettempdir()) / f"simulation-{outcome.seed}.txt"
    print(f"seed {outcome.seed}: {outcome.problem}")
    print(
        f"  python -m tests.simulation --first-seed {outcome.seed} --num-seeds 1 --final-depth {variant.final_depth}"
        f"{' --coalitions' if variant.has_coalition else ''}{' --gone' if variant.tells_gone else ''}"
        f"{' --trust' if variant.abuses_trust else ''}{f' --only {variant.only_kind}' if variant.only_kind else ''}"
        f" --transcript {path}",
        flush=True,
    )
    write_transcript(outcome.seed, path, variant)


def write_transcript(seed: int, path: Path, variant: Variant = PLAIN) -> None:
    """Run one schedule and write what happened in it, a line each."""
    with path.open("w") as file:
        try:
            done = run_seed(seed, variant, keeps_transcript=True)
            file.writelines(f"{line}\n" for line in done.transcript)
        except Exception as error:
            file.write(f"{type(error).__name__}: {error}\n")
