"""How a bug is planted, and by which schedule it is found: what the machines call is replaced while schedules run."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from tests.simulation.schedules.directed import SCENARIOS
from tests.simulation.schedules.seeded import run_seed

Bug = Callable[[], contextlib.AbstractContextManager[Any]]
Schedules = Sequence[Callable[[], str]]
Found = tuple[int | str, str]


def replaced(owner: Any, name: str, value: Any) -> Bug:
    return lambda: mock.patch.object(owner, name, value)


def both(*bugs: Bug) -> Bug:
    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for bug in bugs:
                stack.enter_context(bug())
            yield

    return planted


def caught_by(bug: Bug, first_seed: int, num_seeds: int, scenarios: Schedules = SCENARIOS) -> Found | None:
    """Scenario or seed, and message of the first schedule that shows the bug."""
    with bug():
        for scenario in scenarios:
            if problem := _problem(scenario):
                return scenario.__name__, problem
        for seed in range(first_seed, first_seed + num_seeds):
            if problem := _problem(lambda seed=seed: run_seed(seed).problem):  # type: ignore[misc]
                return seed, problem
    return None


def _problem(schedule: Callable[[], str]) -> str:
    """What the schedule says, or how it broke. A bug that fits no longer what it replaces is none that was found."""
    try:
        return schedule()
    except (TypeError, AttributeError, NameError):
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
