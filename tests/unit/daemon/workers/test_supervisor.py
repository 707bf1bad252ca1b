"""Process trees that end as a whole, and the reaper."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dilocoxd.daemon.workers.supervisor import Child, Launch, describe_exit, keep_reaper
from dilocoxd.errors import WorkerError
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


async def test_end_kills_the_whole_tree_also_in_other_sessions(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-tree"
    child = await Child.start(launch(tmp_path, mark, GRANDCHILD_IN_OWN_SESSION + "time.sleep(600)"))
    pids = await until_alive(mark, 2)
    grandchild = next(pid for pid in pids if pid != child.pid)
    assert is_descendant(grandchild, os.getpid()) and is_descendant(grandchild, child.pid)
    assert not is_descendant(child.pid, grandchild)
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


async def test_command_that_does_not_exist_is_a_worker_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="cannot start /no/such/program"):
        await Child.start(Launch(("/no/such/program",), {}, tmp_path / "log", f"test-{os.getpid()}-missing"))


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "exit status 0"), (78, "exit status 78"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")],
)
def test_exit_is_described_in_words(status: int, text: str) -> None:
    assert describe_exit(status) == text


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
