"""What forks the outer workers: one process for all files here, which loads torch once."""

from collections.abc import Iterator

import pytest

from tests.harness.outer_worker.forks import OUTER, Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Has an outer worker's modules."""
    with Forks(OUTER) as started:
        yield started
