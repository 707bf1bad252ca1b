"""How a test without workers begins: a founder whose chain has grown, and a second site that joined through it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites

PHASE_S = 1.5


@contextlib.contextmanager
def founder(
    folder: Path, timeout_s: float, *options: str, phase_s: float = PHASE_S, height: int = 1
) -> Iterator[SiteProcess]:
    """Site "a" with a new run made with `options`, once it has this height; killed at the end of the block."""
    a = found_run(folder, "a", *options)
    with sites(a):
        a.start_without_model(phase_s)
        a.wait_height(height, timeout_s)
        yield a


@contextlib.contextmanager
def joiner(
    folder: Path,
    name: str,
    through: SiteProcess,
    start: Callable[[SiteProcess], None] = SiteProcess.start_without_model,
) -> Iterator[SiteProcess]:
    """A site that joined through another, just started by `start`; killed at the end of the block."""
    site = join_run(folder, name, through)
    with sites(site):
        start(site)
        yield site


@contextlib.contextmanager
def pair(
    folder: Path,
    timeout_s: float,
    *options: str,
    phase_s: float = PHASE_S,
    start_second: Callable[[SiteProcess], None] = SiteProcess.start_without_model,
) -> Iterator[tuple[SiteProcess, SiteProcess]]:
    """The founder "a" (as `founder`) and "b", just started by `start_second`, which joined through it."""
    with founder(folder, timeout_s, *options, phase_s=phase_s) as a, joiner(folder, "b", a, start_second) as b:
        yield a, b
