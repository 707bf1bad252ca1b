"""When trainers waited for their daemon: each notes where a wait begins and ends, so that one which began before what
is measured, or goes on behind it, counts by its part within alone.

All processes of a machine read the same monotonic clock.
"""

import time
from collections.abc import Iterator
from pathlib import Path

WAITS_VARIABLE = "DILOCOXD_BENCH_WAITS"
"""File in which a trainer notes its waits; unset: it notes none."""
BEGAN, ENDED = "began", "ended"


def note(path: Path, what: str) -> None:
    """That a wait `began` or `ended` now."""
    with path.open("a", encoding="ascii") as file:
        file.write(f"{what} {time.monotonic()!r}\n")


def waited_s(path: Path, since: float, until: float) -> float:
    """Seconds of waiting between the two; no file: none, for no trainer has ever waited."""
    lines = path.read_text("ascii").splitlines() if path.exists() else []
    return sum(max(0.0, min(until, end) - max(since, start)) for start, end in _waits(lines, until))


def _waits(lines: list[str], until: float) -> Iterator[tuple[float, float]]:
    """Beginning and end of each; the last one may not be over, and one whose trainer died in it is nobody's."""
    began: float | None = None
    for line in lines:
        what, at = line.split()
        if what == BEGAN:
            began = float(at)
        elif began is not None:
            yield began, float(at)
            began = None
    if began is not None:
        yield began, until
