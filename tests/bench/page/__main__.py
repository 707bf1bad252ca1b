"""Measures the rows of docs/benchmarks.md and writes them there: `make bench [ARGS="ROW ... --anyway"]`.

Half an hour for all rows, each bounded in time. A row that starts while the machine is busy is not measured, unless
--anyway: its figures would be those of the load. Results are JSON in tests/bench/results; --pages makes the pages from
them again, --check says whether they are what the JSON says.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.page.render import PAGES, ROOT, PageError, figures, render_pages, rendered
from tests.bench.page.results import FOLDER, Result, machine, parse, read, today, write
from tests.bench.page.rows import ROWS, Row, row_of

LOAD_MAX = 1.0
SETTLE_S = 90.0
"""What the row before left in the load average is gone by then."""
POLL_S = 3.0
KILL_AFTER_S = 30.0
IMAGES = ROOT / "docs" / "images"


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def is_quiet(load_max: float, settle_s: float) -> bool:
    """Whether the load is at most this, or falls below it in time."""
    deadline = time.monotonic() + settle_s
    while load() > load_max:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def measure(row: Row, folder: Path, slower: float = 1.0) -> Result | str:
    """One measurement, or why there is none. `slower`: so many times the seconds that the row may take."""
    folder.mkdir(parents=True, exist_ok=True)
    options = row.options.format(results=folder, images=IMAGES if folder == FOLDER else folder)
    shown = row.options.format(results="tests/bench/results", images="docs/images")
    before, began = load(), time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.page.row", row.module, *options.split()],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, said = process.communicate(timeout=row.limit_s * slower)
    except subprocess.TimeoutExpired:
        end(process)
        return (
            f"not over after {row.limit_s * slower:.0f} s; if nothing else runs here, the machine is slower than the"
            f" one that these limits are for: make bench ARGS='--slower {2 * slower:g} {row.name}'"
        )
    if process.returncode:
        return f"ended with {process.returncode}: {said[-2000:]}"
    tables, lines = parse(out)
    took = round(time.monotonic() - began, 1)
    loads = round(before, 2), round(load(), 2)
    command = f"python -m tests.bench.{row.module} {shown}".strip()
    found = Result(row.name, command, today(), machine(), loads, took, tables, lines)
    try:
        figures(lambda _: found, [row])
    except PageError as error:  # the pages could not be made with it
        return str(error)
    return found


def end(process: subprocess.Popen[str]) -> None:
    """SIGTERM first: what a benchmark has started ends with it (row.py)."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def run(rows: list[Row], options: argparse.Namespace) -> int:
    """Measure them one after the other; how many have no result."""
    print(f"{machine()}; load {load():.1f}", flush=True)
    num_missing = 0
    for row in rows:
        if not options.anyway and not is_quiet(options.load_max, options.settle_s):
            found: Result | str = f"load {load():.1f} is above {options.load_max:g}: wait, or use --anyway"
        else:
            found = measure(row, options.results, options.slower)
        if isinstance(found, str):
            num_missing += 1
            print(f"{row.name}: NOT MEASURED: {found}", flush=True)
            continue
        write(found, options.results)
        print(f"{row.name}: {found.seconds:.0f} s, load {found.load[0]:.1f} to {found.load[1]:.1f}", flush=True)
    print(figures(lambda name: read(name, options.results), rows))
    return num_missing


def check() -> int:
    """Number of pages that are not what the JSON says."""
    wrong = [path for path in PAGES if (text := path.read_text(encoding="utf-8")) != rendered(text)]
    for path in wrong:
        print(f"{path.relative_to(ROOT)} is not what tests/bench/results says: make bench ARGS=--pages")
    if not wrong:
        print("pages are what tests/bench/results says")
    return len(wrong)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"default: all of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--anyway", action="store_true", help="measure under any load")
    parser.add_argument("--load-max", type=float, default=LOAD_MAX, help="load average at the start of a row")
    parser.add_argument("--settle-s", type=float, default=SETTLE_S, help="wait so long for the load to fall")
    parser.add_argument("--slower", type=float, default=1.0, help="so many times the time that a row may take")
    parser.add_argument("--results", type=Path, default=FOLDER, help="pages are only written for the default")
    parser.add_argument("--pages", action="store_true", help="only write the pages")
    parser.add_argument("--check", action="store_true", help="only compare the pages")
    options = parser.parse_args()
    if not 1 <= options.slower <= 100:
        parser.error(f"--slower {options.slower:g}: use 1 to 100")
    if unknown := sorted(set(options.rows) - {row.name for row in ROWS}):
        parser.error(f"there is no row {', '.join(unknown)}: use some of {', '.join(row.name for row in ROWS)}")
    return options


def main() -> int:
    options = parsed()
    if options.check:
        return min(1, check())
    num_missing = 0 if options.pages else run([row_of(name) for name in options.rows] or list(ROWS), options)
    if options.results == FOLDER:
        try:
            for path in render_pages():
                print(f"{path.relative_to(ROOT)} is new")
        except PageError as error:
            print(error, file=sys.stderr)
            return 1
    return min(1, num_missing)


if __name__ == "__main__":
    sys.exit(main())
