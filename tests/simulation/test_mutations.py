"""The simulator still sees: bugs that directed schedules find; all with `python -m tests.simulation.mutations`."""

import pytest

from tests.simulation.mutations import BUGS, caught_by


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "promise is not written",
        "a restarted voter asks nobody",
        "an older message takes back a claim",
        "a false branch is not left",
        "no deadline is set",
    ],
)
def test_planted_bug_is_caught_by_a_directed_schedule(name: str) -> None:
    assert caught_by(BUGS[name], first_seed=0, num_seeds=0) is not None
