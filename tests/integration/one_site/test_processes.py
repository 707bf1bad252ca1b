"""The real process tree of a site: forked workers, and what a killed daemon leaves behind (nothing)."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dilocoxd.daemon.site.interface import WorkerChanged
from dilocoxd.ipc.process_tree import find_tree
from dilocoxd.machines.phase.outputs import OfferContribution
from tests.integration.one_site.site_world import REAL_PIPELINE, WAIT_S, kill, make_run, running

pytestmark = pytest.mark.processes
GONE_S = 10.0
"""Issue 2: kill -9 of the daemon leaves no process of its tree alive for longer than this."""


def reapers_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children() if "dilocoxd.ipc.reaper" in " ".join(child.cmdline())]


def start_site(folder: Path) -> tuple["subprocess.Popen[str]", str, list[int]]:
    """A daemon-like process whose trainers train; its mark, and the pids of its tree."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.one_site.site_process", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    mark, *pids = process.stdout.readline().split()
    return process, mark, [int(pid) for pid in pids]


def is_alive(pid: int) -> bool:
    """Not gone and no zombie. A process that is just dying has no environment, and so no mark, any more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def seconds_until_gone(mark: str, pids: list[int]) -> float:
    began = time.monotonic()
    while find_tree(mark) or any(is_alive(pid) for pid in pids):
        assert time.monotonic() - began < WAIT_S
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.parametrize("hardship", ["none", "reaper is dead", "workers are frozen"])
def test_killed_daemon_leaves_no_process_for_longer_than_ten_seconds(tmp_path: Path, hardship: str) -> None:
    process, mark, pids = start_site(tmp_path / "run")
    try:
        assert len(pids) >= 4, "fork server, outer worker, two ranks"
        sessions = {os.getsid(pid) for pid in pids}
        assert len(sessions) >= 4, "each has a session: process groups would not be enough"
        if hardship == "reaper is dead":
            for pid in reapers_of(process.pid):
                os.kill(pid, signal.SIGKILL)
        elif hardship == "workers are frozen":
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        process.kill()
        seconds = seconds_until_gone(mark, pids)
        print(f"{hardship}: gone after {seconds:.2f} s")
        assert seconds < GONE_S
    finally:
        for pid in (process.pid, *pids):
            kill(pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_real_trainers_follow_each_other_and_one_killed_rank_is_a_new_generation(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", stages=2, delay="arrival")
    settings = dataclasses.replace(settings, trainer_modules=REAL_PIPELINE, evaluate_every_rounds=2)
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 2, "2 entries")
        first = world.site.trainer.pids
        assert len(first) == 2
        kill(first[-1], signal.SIGKILL)
        await world.until(lambda: world.site.trainer.generation == 2, "generation 2")
        before = len(world.committed)
        await world.until(lambda: len(world.committed) >= before + 2, "2 more entries")
        assert not [pid for pid in first if is_alive(pid)]
        status = world.site.status()
        assert status.tokens > 0 and status.global_step > 0
    assert world.offered == sorted(set(world.offered))
    assert all(offer.formed.norm > 0 for offer in world.of(OfferContribution))
    lost = [e.reason for e in world.of(WorkerChanged) if e.role == "trainer" and e.state == "lost"]
    assert len(lost) == 1
    assert "(process 1: killed by SIGKILL" in lost[0], "the first to go is told first"
    with contextlib.suppress(FileNotFoundError):
        assert not list((tmp_path / "run").glob("sock"))
    assert [e for e in world.of(WorkerChanged) if e.role == "trainer"][-1].state == "stopped"


@pytest.mark.remedy("alert:worker_fork_server_lost")
async def test_killed_fork_server_takes_its_workers_along_and_all_come_back(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", delay="phase")
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 1, "an entry")
        site = world.site
        first = [site.fork_server.pid, site.outer.pid, *site.trainer.pids]
        kill(site.fork_server.pid, signal.SIGKILL)
        await world.until(lambda: site.trainer.generation == 2 and site.outer.generation == 2, "the next ones")
        before = len(world.committed)
        await world.until(lambda: len(world.committed) >= before + 2, "2 more entries")
        assert not [pid for pid in first if is_alive(pid)]
    lost = {e.role: e.reason for e in world.of(WorkerChanged) if e.state == "lost"}
    assert set(lost) == {"fork_server", "outer", "trainer"}
    assert "killed by SIGKILL" in lost["fork_server"]


async def test_site_cancelled_in_the_middle_ends_its_workers(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", delay="phase")
    with pytest.raises(BaseExceptionGroup):
        async with running(settings) as world:
            await world.until(lambda: len(world.committed) >= 1, "an entry")
            pids = [world.site.outer.pid, *world.site.trainer.pids]
            raise ValueError("the rest of the daemon failed")
    async with asyncio.timeout(GONE_S):
        while any(psutil.pid_exists(pid) for pid in pids):
            await asyncio.sleep(0.02)
