"""Restart budgets, process trees that end as a whole, and the reaper."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dilocoxd.daemon.supervisor import Child, Launch, RestartBudget, keep_reaper
from dilocoxd.errors import WorkerError
from dilocoxd.ids import Monotonic
from dilocoxd.ipc.process_tree import find_tree, is_descendant

WAIT_S = 60.0
GRANDCHILD_IN_OWN_SESSION = (
    "import subprocess, sys, time\n"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print(p.pid, flush=True)\n"
)


def launch(folder: Path, mark: str, code: str) -> Launch:
    return Launch((sys.executable, "-c", code), {}, folder / "logs" / "child.log", mark)


async def until_alive(mark: str, count: int) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        while len(found := find_tree(mark)) < count:
            await asyncio.sleep(0.02)
    return found


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(WAIT_S):
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Zombies are dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_budget_backs_off_forgets_and_ends() -> None:
    budget = RestartBudget(4, window_s=100.0, backoff_first_s=1.0, backoff_max_s=3.0)
    assert [budget.next_delay(Monotonic(t)) for t in (0.0, 10.0, 20.0, 30.0, 40.0)] == [1.0, 2.0, 3.0, 3.0, None]
    assert budget.next_delay(Monotonic(100.0)) == 3.0, "the first one is forgotten"
    assert budget.next_delay(Monotonic(101.0)) is None
    assert budget.total == 5


async def test_end_kills_the_whole_tree_also_in_other_sessions(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-tree"
    child = await Child.start(launch(tmp_path, mark, GRANDCHILD_IN_OWN_SESSION + "time.sleep(600)"))
    pids = await until_alive(mark, 2)
    grandchild = next(pid for pid in pids if pid != child.pid)
    assert is_descendant(grandchild, os.getpid()) and is_descendant(grandchild, child.pid)
    assert not is_descendant(child.pid, grandchild)
    assert set(await child.pids()) == set(pids)
    assert find_tree(mark[:-1]) == [], "a mark is no prefix of another"
    assert await child.end(grace_s=0.0) == -signal.SIGKILL
    assert find_tree(mark) == []


async def test_orphans_of_a_dead_child_are_killed_too(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-orphan"
    child = await Child.start(launch(tmp_path, mark, GRANDCHILD_IN_OWN_SESSION))
    assert await child.wait() == 0
    orphans = find_tree(mark)
    assert len(orphans) == 1 and not is_descendant(orphans[0], os.getpid())
    assert await child.end(grace_s=0.0) == 0
    assert find_tree(mark) == []


async def test_child_that_leaves_by_itself_keeps_its_exit_status_and_log(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-status"
    child = await Child.start(launch(tmp_path, mark, "print('said this'); raise SystemExit(3)"))
    assert await child.end(grace_s=WAIT_S) == 3
    assert (tmp_path / "logs" / "child.log").read_text() == "said this\n"


async def test_command_that_does_not_exist_is_told_by_its_status(tmp_path: Path) -> None:
    child = await Child.start(Launch(("/no/such/program",), {}, tmp_path / "log", f"test-{os.getpid()}-missing"))
    assert await child.wait() != 0
    assert "FileNotFoundError" in (tmp_path / "log").read_text()


async def test_log_that_cannot_be_written_is_a_worker_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, not a folder")
    with pytest.raises(WorkerError, match="cannot start"):
        await Child.start(launch(tmp_path, "test-none", ""))


async def test_reaper_kills_what_is_left_when_its_pipe_closes(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-reaper"
    async with asyncio.TaskGroup() as group:
        reaper = group.create_task(keep_reaper(mark))
        child = await Child.start(launch(tmp_path, mark + "/worker-1", GRANDCHILD_IN_OWN_SESSION + "time.sleep(600)"))
        pids = await until_alive(mark, 2)
        reaper.cancel()
    await until_gone(pids)
    assert await child.wait() == -signal.SIGKILL
