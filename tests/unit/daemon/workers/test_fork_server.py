"""Workers forked by a real fork server: what they are, how they end, what its own death, silence or failure does."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dilocoxd.daemon.workers import fork_server as module_under_test
from dilocoxd.daemon.workers.fork_server import ForkServer, ForkServerSettings
from dilocoxd.daemon.workers.forked import FIRST_EXIT_S, ForkLaunch, Workers
from dilocoxd.daemon.workers.ranks import start_ranks
from dilocoxd.daemon.workers.supervisor import Launch
from dilocoxd.errors import WorkerError
from dilocoxd.ipc.keep_alive import RestartBudget
from dilocoxd.ipc.process_tree import TREE_VARIABLE, find_tree

WAIT_S = 60.0
PROBE = "tests.harness.outer_worker.fork_probe"


class Site:
    """Owns the fork server and listens to it."""

    def __init__(self, folder: Path, *modules: str, restarts_max: int = 3) -> None:
        self.folder = folder
        self.mark = f"test-{os.getpid()}-{folder.name}"
        self.lost: list[str] = []
        self.num_warm = 0
        self.changed = asyncio.Event()
        budget = RestartBudget(restarts_max, window_s=100.0, backoff_first_s=0.0)
        self.server = ForkServer(ForkServerSettings(self._launch, modules or (PROBE,), budget, WAIT_S), self)
        self._num_launches = 0

    def _launch(self, generation: int) -> Launch:
        command = (sys.executable, "-m", "dilocoxd.ipc.fork_server", str(self.folder))
        return Launch(command, {"OMP_NUM_THREADS": "1"}, self.folder / "server.log", f"{self.mark}/server-{generation}")

    def fork_server_warm(self) -> None:
        self.num_warm += 1
        self.changed.set()

    def fork_server_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.changed.set()

    def probe(self, doing: str, *, count: int = 1, status: int = 0, module: str = PROBE) -> ForkLaunch:
        self._num_launches += 1
        environment = {"PROBE": doing, "PROBE_STATUS": str(status)}
        mark = f"{self.mark}/probe-{self._num_launches}"
        return ForkLaunch(module, (environment,) * count, self.folder / "logs" / "probe.log", mark, header="a probe")

    def log(self) -> str:
        return (self.folder / "logs" / "probe.log").read_text()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def running(site: Site) -> AsyncIterator[Site]:
    """The fork server is kept going; at the end nothing of it or its workers is left."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(site.server.run())
        yield site
        task.cancel()
    assert find_tree(site.mark) == []


async def exits(workers: Workers) -> str:
    async with asyncio.timeout(WAIT_S):
        return await workers.end(grace_s=WAIT_S)


async def test_worker_has_its_environment_mark_command_session_and_descriptors(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        with (tmp_path / "passed").open("wb") as passed:
            launch = dataclasses.replace(site.probe("look"), passed={"PASSED": passed.fileno()})
            workers = await site.server.start(launch)
            assert await exits(workers) == "exit status 0"
        header, text = site.log().split("\n", 1)
        found = json.loads(text)
        assert header == "a probe"
        assert found["environment"]["PROBE"] == "look"
        assert found["environment"][TREE_VARIABLE] == launch.mark
        assert found["session"] == found["pid"] == workers.pids[0]
        assert sorted(found["descriptors"]) == sorted([0, 1, 2, int(found["environment"]["PASSED"])])


async def test_worker_is_found_by_its_own_mark_and_shows_its_own_command(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        first, second = site.probe("wait"), site.probe("wait", count=2)
        one, two = await site.server.start(first), await site.server.start(second)
        assert find_tree(first.mark) == list(one.pids)
        assert sorted(find_tree(second.mark)) == sorted(two.pids)
        assert set(find_tree(site.mark)) == {site.server.pid, *one.pids, *two.pids}
        assert psutil.Process(one.pids[0]).cmdline()[:3] == [sys.executable, "-m", PROBE]
        assert psutil.Process(site.server.pid).cmdline()[-1] == str(tmp_path)
        assert await two.end(grace_s=0.0) == "it was killed"
        assert find_tree(second.mark) == []
        assert find_tree(first.mark) == list(one.pids), "a worker ends alone"
        assert two.statuses == (-signal.SIGKILL, -signal.SIGKILL)
        await one.end(grace_s=0.0)


@pytest.mark.parametrize(
    ("doing", "status", "told"),
    [("exit", 78, "exit status 78"), ("raise", 0, "exit status 1"), ("kill", signal.SIGSEGV, "killed by SIGSEGV")],
)
async def test_end_of_a_worker_is_told_as_it_was(tmp_path: Path, doing: str, status: int, told: str) -> None:
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe(doing, status=status))
        assert await workers.first_exit() == told
        assert await exits(workers) == told
    assert ("the probe was told to fail" in site.log()) is (doing == "raise")


async def test_of_several_the_one_that_ended_first_is_named(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe("wait", count=2))
        os.kill(workers.pids[1], signal.SIGTERM)
        assert await workers.end(grace_s=0.0) == "process 1: killed by SIGTERM"
        assert workers.statuses == (-signal.SIGKILL, -signal.SIGTERM)


def until_over(pid: int) -> None:
    """A zombie, or buried."""
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


async def test_fork_server_that_stood_still_while_they_died_tells_of_the_killed_one_first(tmp_path: Path) -> None:
    """The other one may have ended because its peer was gone; the kernel tells of both in the order of their start."""
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe("wait", count=2))
        os.kill(site.server.pid, signal.SIGSTOP)
        os.kill(workers.pids[1], signal.SIGKILL)
        until_over(workers.pids[1])
        os.kill(workers.pids[0], signal.SIGHUP)  # the probe leaves with its status
        until_over(workers.pids[0])
        os.kill(site.server.pid, signal.SIGCONT)
        assert await exits(workers) == "process 1: killed by SIGKILL, process 0: exit status 0"


async def test_what_a_worker_died_of_is_told_though_the_fork_server_is_late(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe("wait", count=2))
        os.kill(site.server.pid, signal.SIGSTOP)
        os.kill(workers.pids[1], signal.SIGTERM)
        until_over(workers.pids[1])
        asyncio.get_running_loop().call_later(4 * FIRST_EXIT_S, os.kill, site.server.pid, signal.SIGCONT)
        assert await workers.end(grace_s=0.0) == "process 1: killed by SIGTERM"
        assert workers.statuses == (-signal.SIGKILL, -signal.SIGTERM)


async def test_killed_fork_server_takes_its_workers_along_and_is_replaced(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe("wait"))
        os.kill(site.server.pid, signal.SIGKILL)
        assert "the fork server is gone" in await workers.first_exit()
        await workers.end(grace_s=0.0)
        assert find_tree(f"{site.mark}/probe-1") == []
        after = await site.server.start(site.probe("exit", status=3))
        assert await exits(after) == "exit status 3"
        assert (site.server.generation, site.num_warm) == (2, 2)
        assert len(site.lost) == 1
        assert "killed by SIGKILL" in site.lost[0]


async def test_fork_server_that_hangs_is_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "FORK_TIMEOUT_S", 0.2)
    async with running(Site(tmp_path)) as site:
        await site.until(lambda: site.num_warm)
        os.kill(site.server.pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match="said nothing"):
            await site.server.start(site.probe("wait"))
        monkeypatch.setattr(module_under_test, "FORK_TIMEOUT_S", WAIT_S)
        after = await site.server.start(site.probe("exit", status=3))
        assert await exits(after) == "exit status 3"
        assert "said nothing" in site.lost[0]


async def test_fork_server_that_does_not_tell_the_end_of_the_dead_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dilocoxd.daemon.workers.forked.BURY_S", 0.2)
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe("wait"))
        os.kill(site.server.pid, signal.SIGSTOP)
        await workers.end(grace_s=0.0)
        assert find_tree(f"{site.mark}/probe-1") == []
        await site.until(lambda: site.num_warm == 2)
        assert "did not tell" in site.lost[0]


async def test_module_that_cannot_be_loaded_spends_the_budget_and_the_log_says_why(tmp_path: Path) -> None:
    site = Site(tmp_path, "tests.no_such_module", restarts_max=1)
    with pytest.raises(BaseExceptionGroup) as failed:
        async with running(site):
            await site.server.start(site.probe("wait"))
    (error,) = failed.value.exceptions
    assert "logs/fork-server.log" in str(error)
    assert len(site.lost) == 2
    assert "No module named 'tests.no_such_module'" in (tmp_path / "server.log").read_text()


async def test_log_that_cannot_be_written_is_a_worker_error_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, not a folder")
    async with running(Site(tmp_path)) as site:
        with pytest.raises(WorkerError, match="cannot write"):
            await site.server.start(site.probe("wait"))


@dataclasses.dataclass
class NodeWithoutALog:
    """A stage away whose process here cannot write to its log."""

    server: ForkServer
    folder: Path
    num: int = 1
    here: int = 1

    async def take(self) -> list["NodeWithoutALog"]:
        return [self]

    async def start(self, launch: ForkLaunch) -> Workers:
        return await self.server.start(dataclasses.replace(launch, log_path=self.folder / "server.log" / "trainer.log"))

    def close(self) -> None:
        pass

    def node_of(self, index: int) -> str:
        return f"node {index}"


async def test_ranks_whose_fellows_cannot_be_started_do_not_live_on(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        launch = site.probe("wait")
        with pytest.raises(WorkerError, match="cannot write"):
            await start_ranks(launch, 2, site.server, NodeWithoutALog(site.server, tmp_path))
        assert find_tree(launch.mark) == []


async def test_no_worker_is_forked_once_the_site_stops(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        waiting = asyncio.ensure_future(site.server.start(site.probe("wait")))
        await asyncio.sleep(0)
        site.server.stop()
        with pytest.raises(WorkerError, match="the site stops"):
            await waiting
