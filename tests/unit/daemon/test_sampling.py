"""A text for an operator: who is refused, and what a real process makes of a real snapshot within its limits."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from aiohttp import ClientSession

from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from dilocoxd.daemon import sampling
from dilocoxd.daemon.sampling import INTERVAL_S, Sampler, hold_back
from dilocoxd.errors import CommandRefused
from dilocoxd.ipc.machine_memory import MachineMemory
from dilocoxd.store.rundir import RunDir
from tests.harness.outer_worker.run_on_disk import RunOnDisk, make_run
from tests.remedies.refused.rooms.told import commanded
from tests.unit.api.serving import TOKEN
from tests.unit.daemon.test_operator_side import Recorded

PATIENCE_S = 240.0


@pytest.fixture
def as_soon_as_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests the least priority means never; test_process_has_the_least_priority shows it."""
    monkeypatch.setattr(sampling, "NICE", os.getpriority(os.PRIO_PROCESS, 0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    return make_run(tmp_path_factory.mktemp("sampling"), rounds=1, snapshots_at=(0, 1))


class Times:
    """A clock that stands."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def working(sampler: Sampler) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sampler.run(), name="texts")
        yield
        task.cancel()


async def ended(sampler: Sampler) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while sampler.shown.state == "running":
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("as_soon_as_the_test")
async def test_newest_snapshot_writes_and_a_failure_keeps_what_was_written(run: RunOnDisk) -> None:
    clock = Times()
    sampler = Sampler(run.run_dir, has_own_loop=False, clock=clock)
    async with working(sampler):
        assert "round 1 writes" in await sampler.ask("Number 7 --x ")
        with commanded("daemon/sampling.py", "a text is being made already; wait for it"):
            await sampler.ask("Number 8")
        await ended(sampler)
        first = sampler.shown
        assert (first.state, first.round, first.prompt) == ("done", 1, "Number 7 --x "), first.text
        assert first.written and not first.written.startswith("Number 7")
        clock.now += INTERVAL_S - 5
        with commanded("daemon/sampling.py", "; try again in VALUE s"):
            await sampler.ask("Number 8")
        with pytest.raises(CommandRefused, match="try again in 5 s"):
            await sampler.ask("Number 8")
        clock.now += 5
        index = run.run_dir.snapshots / "1" / "anchor.safetensors"
        whole = index.read_bytes()
        index.write_bytes(whole[:-8])
        try:
            await sampler.ask("Number 8")
            await ended(sampler)
        finally:
            index.write_bytes(whole)
    assert sampler.shown.state == "failed"
    assert str(index) in sampler.shown.text and "\n" not in sampler.shown.text
    assert (sampler.shown.prompt, sampler.shown.written) == (first.prompt, first.written)


async def test_without_snapshot_or_with_a_loop_of_ones_own_it_is_refused(tmp_path: Path, run: RunOnDisk) -> None:
    with pytest.raises(CommandRefused, match="no snapshot yet"):
        await Sampler(RunDir(tmp_path), has_own_loop=False).ask("The ")
    with pytest.raises(CommandRefused, match="a loop of your own trains this run"):
        await Sampler(run.run_dir, has_own_loop=True).ask("The ")


@pytest.mark.usefixtures("as_soon_as_the_test")
async def test_too_slow_a_text_is_ended(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LIMIT_S", 0.05)
    sampler = Sampler(run.run_dir, has_own_loop=False)
    async with working(sampler):
        await sampler.ask("The ")
        await ended(sampler)
    assert sampler.shown.text == "no text, training goes on: it took longer than 0.05 s and was ended"


@pytest.mark.usefixtures("as_soon_as_the_test")
async def test_a_stop_ends_a_text_in_the_making_and_says_so(run: RunOnDisk) -> None:
    sampler = Sampler(run.run_dir, has_own_loop=False)
    async with asyncio.TaskGroup() as group:
        before = set(psutil.Process().children())
        task = group.create_task(sampler.run(), name="texts")
        await sampler.ask("The ")
        async with asyncio.timeout(PATIENCE_S):
            while not (writers := set(psutil.Process().children()) - before):
                await asyncio.sleep(0.01)
        task.cancel()
    assert (sampler.shown.state, sampler.shown.text.partition(";")[0]) == ("failed", "no text, the daemon stops")
    assert not any(one.is_running() for one in writers)


async def test_without_memory_nothing_is_started(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "machine_memory", lambda: MachineMemory(8 << 30, 1 << 30))
    sampler = Sampler(run.run_dir, has_own_loop=False)
    async with working(sampler):
        await sampler.ask("The ")
        await ended(sampler)
    assert (
        sampler.shown.text == "no text, training goes on: half of the free memory is 536.9 MB, and 805.3 MB are needed"
    )


async def test_process_has_the_least_priority_and_its_memory_ends() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        hold_back(process.pid, 1 << 30)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (1 << 30, 1 << 30)
        assert (Path("/proc") / str(process.pid) / "oom_score_adj").read_text("ascii").strip() == "1000"
    finally:
        process.kill()
        await process.wait()


async def test_over_the_api_only_with_the_token(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run")
    section = ApiSection(port=0)
    async with serve_api(world.daemon.view, world.control, section, TOKEN) as (host, port), ClientSession() as client:
        url, body = f"http://{host}:{port}/v1", {"prompt": "The "}
        async with client.post(f"{url}/control/sample", json=body) as answer:
            assert answer.status == 401
        async with client.post(
            f"{url}/control/sample", json=body, headers={"Authorization": f"Bearer {TOKEN}"}
        ) as answer:
            assert answer.status == 409 and "no snapshot yet" in (await answer.json())["detail"]
        async with client.get(f"{url}/sample") as answer:
            assert (await answer.json())["state"] == "none"
