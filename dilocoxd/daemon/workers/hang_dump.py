"""Asks trainers that hang where they are, before they are killed: a folder in logs/hangs of the run directory.

Only those are asked that listen (trainer/flight_recorder.py): the signal ends any other process. Who stands for ranks
on a node asks there, and brings what they tell (trainer/away/hang.py). Which rank is the cause shows by comparing: it
is the one that is not in the collective that the others wait in.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from dilocoxd.daemon.workers.forked import Workers
from dilocoxd.ipc.dated_folders import keep_newest, stamp
from dilocoxd.ipc.hang_files import DUMP_SIGNAL, collectives_name, hangs_folder, live_folder, names_of, timeout_name

DUMP_S: Final = 3.0
"""Writing takes some 10 ms; a rank that is frozen, or holds the interpreter lock, tells its collectives never."""
LOOK_S: Final = 0.05
HANGS_KEPT: Final = 5
"""Folders of the newest hangs; older ones are removed."""
_PROC: Final = Path("/proc")


async def dump_of(
    run_directory: Path,
    generation: int,
    workers: Workers,
    is_hurried: Callable[[], bool],
    ranks: Sequence[range] = (),
    wait_s: float = DUMP_S,
) -> str:
    """Folder with what the ranks told, as a path below the run directory; empty if none told anything.

    Once `is_hurried` says so, nobody is waited for any longer: the site stops. `ranks`: of each process, of which one
    may stand for several on a node; empty: process k is rank k.
    """
    ranks = ranks or [range(rank, rank + 1) for rank in range(len(workers.pids))]
    asked = await asyncio.to_thread(_ask, run_directory, workers, ranks)
    if not asked:
        return ""
    live = live_folder(run_directory)
    deadline = time.monotonic() + wait_s
    while not all((live / collectives_name(rank)).exists() for rank in asked):
        if time.monotonic() >= deadline or is_hurried():
            break
        await asyncio.sleep(LOOK_S)
    return await asyncio.to_thread(_keep, run_directory, generation, list(itertools.chain(*ranks)))


async def left_by_nccl(run_directory: Path, generation: int, num_ranks: int) -> str:
    """The same where nobody was asked: NCCL's watchdog may have written what it saw before it ended a rank."""
    return await asyncio.to_thread(_keep_timeouts, run_directory, generation, num_ranks)


def _keep_timeouts(run_directory: Path, generation: int, num_ranks: int) -> str:
    live = live_folder(run_directory)
    is_there = any((live / timeout_name(rank)).exists() for rank in range(num_ranks))
    return _keep(run_directory, generation, range(num_ranks)) if is_there else ""


def _ask(run_directory: Path, workers: Workers, ranks: Sequence[range]) -> list[int]:
    """Ranks that were sent the signal."""
    asked: list[int] = []
    for process, pid in workers.living().items():
        for rank in ranks[process]:
            (live_folder(run_directory) / collectives_name(rank)).unlink(missing_ok=True)
        if catches(pid, DUMP_SIGNAL):
            os.kill(pid, DUMP_SIGNAL)
            asked.extend(ranks[process])
    return asked


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal; False if it is gone."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _keep(run_directory: Path, generation: int, ranks: Iterable[int]) -> str:
    """Move what was written to a folder of its own; its path below the run directory, empty if there is nothing."""
    hangs, live = hangs_folder(run_directory), live_folder(run_directory)
    files = [live / name for rank in ranks for name in names_of(rank)]
    written = [file for file in files if file.exists() and file.stat().st_size]
    if not written:
        return ""
    folder = hangs / f"{stamp()}-generation-{generation}"
    folder.mkdir(exist_ok=True)
    for file in written:
        file.chmod(0o600)
        file.replace(folder / file.name)
    keep_newest((one for one in hangs.iterdir() if one.is_dir() and one != live), HANGS_KEPT)
    return str(folder.relative_to(run_directory))
