"""Property tests try the same examples in each run; DILOCOXD_NEW_EXAMPLES=1 looks for new ones.

The longest files come first: run two at a time, one of them would else be left alone at the end.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.kept_handlers import kept_handlers
from tests.harness.running.warm import WARM_VARIABLE

LONGEST = (
    # with daemons
    *("integration/several_sites/test_kill_matrix.py", "integration/several_sites/test_chaos.py"),
    *("integration/several_sites/test_engine_parity.py", "integration/several_sites/test_launches.py"),
    *("integration/several_sites/test_training.py", "integration/test_benchmarks.py", "tutorials/test_tutorials.py"),
    # without
    *("simulation/test_seeds.py", "unit/machines/phase/test_crash_books.py", "unit/trained/test_pretrained.py"),
    *("stories/test_stories.py", "unit/outerworker/test_memory.py", "unit/bench/test_convergence.py"),
    *("unit/trainer/test_data.py", "unit/outer/test_invariants.py", "unit/trained/test_adapter_start.py"),
)

# How long an example takes says something about the machine alone.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default" if os.environ.get("DILOCOXD_NEW_EXAMPLES") else "fixed")

os.environ.setdefault(WARM_VARIABLE, "1")
# A site that nobody tells otherwise has a thread for each core, and those that wait for each other spin: on a machine
# that others use too, an inner step of 8 ms costs half a second of CPU.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """No fixture: hypothesis refuses those of a test that it runs many times."""
    with kept_handlers():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Same order otherwise."""
    rank = {(Path(__file__).parent / name).resolve(): number for number, name in enumerate(LONGEST)}
    assert all(path.exists() for path in rank), "a file of LONGEST is gone"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
