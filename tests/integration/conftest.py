"""The longest files first: run two at a time, one of them would else be left alone at the end."""

from pathlib import Path

import pytest

LONGEST = (
    *("several_sites/test_kill_matrix.py", "several_sites/test_chaos.py", "several_sites/test_engine_parity.py"),
    *("several_sites/test_launches.py", "several_sites/test_training.py", "test_benchmarks.py"),
    "../tutorials/test_tutorials.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Same order otherwise."""
    rank = {(Path(__file__).parent / name).resolve(): number for number, name in enumerate(LONGEST)}
    assert all(path.exists() for path in rank), "a file of LONGEST is gone"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
