"""Who descends from whom, also where the daemon is the first process (a container)."""

from pathlib import Path

import pytest

from dilocoxd.ipc import process_tree
from dilocoxd.ipc.process_tree import is_descendant

PARENTS = {1: 0, 7: 1, 30: 7, 31: 0}


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process table of our own: 1 <- 7 <- 30, and 31 that was put into the container from outside."""
    for pid, parent in PARENTS.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 0 0")
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)


@pytest.mark.parametrize(
    ("pid", "ancestor", "is_one"),
    [(30, 7, True), (30, 1, True), (7, 1, True), (7, 7, True), (7, 30, False), (31, 1, False), (99, 1, False)],
)
def test_descendants(processes: None, pid: int, ancestor: int, is_one: bool) -> None:
    assert is_descendant(pid, ancestor) is is_one
