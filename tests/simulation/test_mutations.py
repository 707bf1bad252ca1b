"""The simulator still sees: bugs that directed schedules find; all with `python -m tests.simulation.mutations`."""

import pytest

from tests.simulation.mutations import BUGS, caught_by


@pytest.mark.parametrize("name", BUGS)
def test_what_a_planted_bug_replaces_is_still_there(name: str) -> None:
    with BUGS[name]():
        pass  # AttributeError if its name is gone


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "promise is not written",
        "a restarted voter asks nobody",
        "an older message takes back a claim",
        "a false branch is not left",
        "no deadline is set",
        "who was silent once is never waited for again",
        "the grace goes on while a peer stands still",
        "no time-out is moved after standing still",
    ],
)
def test_planted_bug_is_caught_by_a_directed_schedule(name: str) -> None:
    assert caught_by(BUGS[name], first_seed=0, num_seeds=0) is not None
