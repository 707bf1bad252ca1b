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

from tests.simulation.schedules.seeded import Outcome, run_seed

CHUNK = 20
"""Seeds that a process takes at a time."""
PROGRESS_S = 15.0


def run_quietly(seed: int, final_depth: int = 0, *, has_coalition: bool = False, tells_gone: bool = False) -> Outcome:
    """`run_seed`; an exception in the machines or in the simulation is a finding too."""
    try:
        return run_seed(seed, final_depth=final_depth, has_coalition=has_coalition, tells_gone=tells_gone)
    except Exception as error:
        return Outcome(seed, f"{type(error).__name__}: {error}", 0, 0, 0, 0, 0, ())


@functools.cache
def _settle() -> None:
    """What was loaded before the first schedule of a process stays, and no collection looks through it again."""
    gc.collect()
    gc.freeze()


def run_chunk(
    seeds: range, final_depth: int = 0, *, has_coalition: bool = False, tells_gone: bool = False
) -> list[Outcome]:
    """Seeds one after the other. Garbage is collected between schedules: their parts refer to each other in circles."""
    _settle()
    gc.disable()
    try:
        outcomes = []
        for seed in seeds:
            outcomes.append(
                replace(
                    run_quietly(seed, final_depth, has_coalition=has_coalition, tells_gone=tells_gone), transcript=()
                )
            )
            gc.collect(1)
        gc.collect()
        return outcomes
    finally:
        gc.enable()


@contextmanager
def outcomes_of(
    chunks: list[range], jobs: int, final_depth: int = 0, *, has_coalition: bool = False, tells_gone: bool = False
) -> Iterator[Iterable[list[Outcome]]]:
    """Results of all chunks in order, computed by `jobs` processes."""
    run = functools.partial(run_chunk, final_depth=final_depth, has_coalition=has_coalition, tells_gone=tells_gone)
    if jobs == 1:
        yield map(run, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap(run, chunks)


def run_many(
    first: int,
    count: int,
    *,
    jobs: int = 1,
    stops_early: bool = False,
    final_depth: int = 0,
    has_coalition: bool = False,
    tells_gone: bool = False,
) -> tuple[list[Outcome], list[Outcome]]:
    """(failed, all) of `count` seeds; tells about progress and failures on standard output."""
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    failed: list[Outcome] = []
    done: list[Outcome] = []
    started = told_at = time.monotonic()
    with outcomes_of(chunks, jobs, final_depth, has_coalition=has_coalition, tells_gone=tells_gone) as results:
        for outcomes in results:
            done += outcomes
            for outcome in [one for one in outcomes if one.problem]:
                failed.append(outcome)
                report(outcome, final_depth, has_coalition=has_coalition, tells_gone=tells_gone)
            if time.monotonic() - told_at > PROGRESS_S:
                told_at = time.monotonic()
                rate = len(done) / (told_at - started)
                print(f"{len(done)} of {count} seeds, {len(failed)} failed, {rate:.1f} a second", flush=True)
            if failed and stops_early:
                break
    return failed, done


def report(outcome: Outcome, final_depth: int = 0, *, has_coalition: bool = False, tells_gone: bool = False) -> None:
    """What broke, how to repeat it, and the transcript in a file."""
    path = Path(tempfile.gettempdir()) / f"simulation-{outcome.seed}.txt"
    print(f"seed {outcome.seed}: {outcome.problem}")
    print(
        f"  python -m tests.simulation --first-seed {outcome.seed} --num-seeds 1 --final-depth {final_depth}"
        f"{' --coalitions' if has_coalition else ''}{' --gone' if tells_gone else ''} --transcript {path}",
        flush=True,
    )
    write_transcript(outcome.seed, path, final_depth, has_coalition=has_coalition, tells_gone=tells_gone)


def write_transcript(
    seed: int, path: Path, final_depth: int = 0, *, has_coalition: bool = False, tells_gone: bool = False
) -> None:
    with path.open("w") as file:
        try:
            done = run_seed(
                seed, keeps_transcript=True, final_depth=final_depth, has_coalition=has_coalition, tells_gone=tells_gone
            )
            file.writelines(f"{line}\n" for line in done.transcript)
        except Exception as error:
            file.write(f"{type(error).__name__}: {error}\n")
