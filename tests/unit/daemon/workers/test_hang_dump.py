"""Trainers that hang tell where, before they are killed; training that goes on is not disturbed by being asked."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import torch

from dilocoxd.daemon.workers import hang_dump
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import ForkLaunch
from dilocoxd.daemon.workers.hang_dump import HANGS_KEPT, catches, dump_of, left_by_nccl
from dilocoxd.daemon.workers.trainers import Trainer, TrainerLife, TrainerSettings
from dilocoxd.ipc.client import RUN_DIRECTORY_VARIABLE
from dilocoxd.ipc.hang_files import DUMP_SIGNAL, hangs_folder, live_folder, stacks_name, timeout_name
from dilocoxd.ipc.keep_alive import RestartBudget
from dilocoxd.wire.local.trainer import TrainerReady
from tests.harness.outer_worker.hang_probe import LAGGARD
from tests.unit.daemon.workers.test_fork_server import WAIT_S, Site, running

PROBE = "tests.harness.outer_worker.hang_probe"
REASON = "no sign of life for 120 s while waiting for an inner step"


class Lost:
    """Hears why the trainers were lost, and wants no others."""

    def __init__(self) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.trainer: Trainer | None = None

    def trainer_starting(self, generation: int) -> None: ...

    def trainer_connected(self, generation: int) -> None: ...

    def trainer_said(self, generation: int, message: Any) -> None: ...

    def trainer_lost(self, generation: int, reason: str) -> None:
        assert self.trainer is not None
        self.trainer.stop()
        if not self.reason.done():
            self.reason.set_result(reason)


async def until_files(*paths: Path) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(path.exists() for path in paths):
            await asyncio.sleep(0.02)


async def test_ranks_that_wait_for_one_another_tell_where_before_they_are_killed(tmp_path: Path) -> None:
    async with running(Site(tmp_path, PROBE)) as site:

        def launch(generation: int) -> ForkLaunch:
            environment = {RUN_DIRECTORY_VARIABLE: str(tmp_path)}
            mark = f"{site.mark}/trainer-{generation}"
            return ForkLaunch(PROBE, (environment,), tmp_path / "logs" / "trainer-1.log", mark)

        settings = TrainerSettings(launch, RestartBudget(3, window_s=100.0), 2, tmp_path, WAIT_S)
        lost = Lost()
        lost.trainer = Trainer(settings, site.server, cast(Buffers, None), lost)  # no rank says hello
        async with asyncio.TaskGroup() as group:
            group.create_task(lost.trainer.run())
            await until_files(tmp_path / "READY-0", tmp_path / "READY-1")
            lost.trainer.restart(1, REASON)
            async with asyncio.timeout(WAIT_S):
                reason = await lost.reason
    said, _, folder = reason.partition(" (")[0].partition("; where each rank was: ")
    assert said == REASON and folder.startswith("logs/hangs/") and folder.endswith("-generation-1")
    files = tmp_path / folder
    stacks = [(files / stacks_name(rank)).read_text() for rank in (0, 1)]
    assert "wait_for_all" in stacks[0] and "be_elsewhere" not in stacks[0]
    assert "be_elsewhere" in stacks[LAGGARD]
    entries = [json.loads((files / f"collectives-{rank}.json").read_text())["cpu"]["entries"] for rank in (0, 1)]
    assert [(one["profiling_name"], one["retired"]) for one in entries[0]] == [
        ("gloo:all_reduce", True),
        ("gloo:all_reduce", False),
    ], "rank 0 waits in its second one"
    assert len(entries[LAGGARD]) == 1 and entries[LAGGARD][0]["retired"]
    assert list(live_folder(tmp_path).iterdir()) == []
    assert all((file.stat().st_mode & 0o077) == 0 for file in files.iterdir())


async def test_what_a_rank_says_after_it_was_given_up_counts_for_nothing() -> None:
    lost = Lost()
    life = TrainerLife(1, 1, lost)
    life.end(REASON, is_hung=True)
    life.end("another reason")
    life.on_message(0, TrainerReady())  # would fail: no rank said hello
    assert life.ended.result() == REASON and life.is_hung and not life.is_ready


async def test_who_does_not_listen_is_not_asked_and_lives(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        workers = await site.server.start(site.probe("wait"))
        assert list(workers.living().values()) == list(workers.pids)
        assert not catches(workers.pids[0], DUMP_SIGNAL)
        assert await dump_of(tmp_path, 1, workers, lambda: False) == ""
        assert list(workers.living()) == [0]
        await workers.end(grace_s=0.0)
        assert workers.living() == {}
        assert not catches(workers.pids[0], DUMP_SIGNAL)
    assert not hangs_folder(tmp_path).exists()


def test_only_the_newest_hangs_are_kept(tmp_path: Path, monkeypatch: Any) -> None:
    live = live_folder(tmp_path)
    live.mkdir(parents=True)
    told = []
    for number in range(HANGS_KEPT + 3):
        monkeypatch.setattr(hang_dump, "stamp", lambda n=number: f"20260101T00000{n}Z")
        (live / stacks_name(0)).write_text("stack")
        (live / stacks_name(9)).write_text("of a rank that is no more")
        told.append(hang_dump._keep(tmp_path, number, range(1)))
    kept = sorted(str(path.relative_to(tmp_path)) for path in hangs_folder(tmp_path).iterdir() if path != live)
    assert kept == told[-HANGS_KEPT:]
    assert hang_dump._keep(tmp_path, 99, range(1)) == "", "nothing was written"


async def test_what_nccl_wrote_before_it_ended_a_rank_is_kept_like_a_hang(tmp_path: Path) -> None:
    live = live_folder(tmp_path)
    live.mkdir(parents=True)
    (live / stacks_name(0)).write_text("")
    assert await left_by_nccl(tmp_path, 3, 2) == "", "a rank that just died has nothing to tell"
    (live / timeout_name(1)).write_bytes(b"record")
    folder = await left_by_nccl(tmp_path, 3, 2)
    assert folder.endswith("-generation-3")
    assert [file.name for file in (tmp_path / folder).iterdir()] == ["nccl-timeout-1"]
    assert not (live / timeout_name(1)).exists()


def test_nccl_writes_where_the_daemon_looks(tmp_path: Path) -> None:
    code = "import os, pathlib, sys; from dilocoxd.trainer.flight_recorder import start_recording;"
    code += "start_recording(pathlib.Path(sys.argv[1]), 1); print(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + '1')"
    live_folder(tmp_path).mkdir(parents=True)
    before = live_folder(tmp_path) / timeout_name(1)
    before.write_bytes(b"of the generation before")
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == before and not before.exists()


def test_being_asked_changes_no_number_and_ends_nothing(tmp_path: Path) -> None:
    """A process that computes is asked again and again; its sums are those of one that is not."""
    found = subprocess.run(
        [sys.executable, "-c", COMPUTES, str(tmp_path)], capture_output=True, text=True, check=True,
        timeout=WAIT_S, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])},
    )  # fmt: skip
    values = json.loads(found.stdout)
    assert values[0] == values[1]
    assert (live_folder(tmp_path) / stacks_name(0)).read_text().count("most recent call first") >= 5
    assert torch.tensor(values).isfinite().all()


COMPUTES = """
import json, os, signal, sys, threading, time
from pathlib import Path
import torch
from dilocoxd.ipc.hang_files import DUMP_SIGNAL
from dilocoxd.trainer.flight_recorder import start_recording

def compute():
    torch.manual_seed(1)
    x = torch.randn(64, 64)
    for _ in range(400):
        x = torch.tanh(x @ x / 8) + 0.1
    return x.sum().item()

plain = compute()
start_recording(Path(sys.argv[1]), 0)
over = threading.Event()

def ask():
    for _ in range(5):
        os.kill(os.getpid(), DUMP_SIGNAL)
        time.sleep(0.01)
    over.set()

threading.Thread(target=ask).start()
asked = compute()
over.wait()
told = Path(sys.argv[1]) / "logs/hangs/now/collectives-0.json"
while not told.exists():
    time.sleep(0.01)
print(json.dumps([plain, asked]))
"""
