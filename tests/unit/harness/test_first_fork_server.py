"""The first fork server of a daemon that a test forks is the loaded one; any other costs a second of CPU."""

import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dilocoxd.daemon.workers.supervisor import Child, Launch
from dilocoxd.ipc import fork_server
from tests.harness.outer_worker.first_fork_server import first_taken, take_first


class Loaded:
    """A process that is there already."""

    pid = 7

    async def wait(self) -> int:
        """It never runs."""
        return 0


def become(command: Sequence[str], environment: Mapping[str, str], stdin: int, output: int) -> Loaded:
    return Loaded()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Marks of what was started as a program."""
    started: list[str] = []

    async def start(launch: Launch, *, stdin: int = 0) -> Child:
        started.append(launch.mark)
        return Child(launch, Loaded())  # type: ignore[arg-type]

    monkeypatch.setattr(Child, "start", start)
    return started


def launch_of(folder: Path, module: str, mark: str) -> Launch:
    return Launch((sys.executable, "-m", module, "for a test"), {}, folder / "log", mark)


async def test_only_the_first_fork_server_is_the_loaded_one(tmp_path: Path, programs: list[str]) -> None:
    take_first(become)
    gc.collect()  # nobody keeps what does it
    await Child.start(launch_of(tmp_path, "dilocoxd.ipc.reaper", "reaper"))
    assert (await Child.start(launch_of(tmp_path, fork_server.__name__, "first"))).pid == Loaded.pid
    await Child.start(launch_of(tmp_path, fork_server.__name__, "second"))
    assert programs == ["reaper", "second"]


async def test_behind_the_block_it_is_a_program_again(tmp_path: Path, programs: list[str]) -> None:
    with first_taken(become):
        pass
    await Child.start(launch_of(tmp_path, fork_server.__name__, "behind"))
    assert programs == ["behind"]
