"""Starts, watches and ends the processes of a site: process trees, the reaper, the loop's lag.

Three lines against orphans: workers leave when their socket ends; the kernel kills them when the fork server dies, and
that with the daemon (ipc/child.py); the reaper kills everything that carries this daemon's mark (ipc/reaper.py).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.errors import WorkerError
from dilocoxd.ipc.process_label import padded
from dilocoxd.ipc.process_tree import TREE_VARIABLE, kill_tree

LOG_BYTES_MAX: Final = 16 << 20
_REAPER_RESTART_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a worker."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path
    mark: str
    """Marks every process of this worker; unique for each start."""
    header: str = ""
    """First line of what this start writes to the log."""


class Child:
    """One started process and everything below it."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        self.launch = launch
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, launch: Launch, *, stdin: int = subprocess.DEVNULL) -> "Child":
        """Start it in a session of its own, output appended to its log. Raises WorkerError.

        Its mark is padded, so that it can fork processes with marks of their own (ipc/process_label.py).
        """
        environment = {**os.environ, **launch.environment, TREE_VARIABLE: padded(launch.mark), **import_path()}
        try:
            log = await asyncio.to_thread(open_log, launch.log_path, launch.header)
            try:
                process = await asyncio.create_subprocess_exec(
                    *launch.command,
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            finally:
                os.close(log)
        except OSError as error:
            raise WorkerError(f"cannot start {launch.command[0]}: {error}") from error
        return cls(launch, process)

    async def wait(self) -> int:
        """Exit status; negative: killed by that signal."""
        return await self._process.wait()

    async def end(self, *, grace_s: float) -> int:
        """Wait `grace_s` for it to leave by itself, then SIGKILL the whole tree; exit status of the first process.

        Cancelled or not, nothing of the tree lives on: a task group that ends because of an error may leave a
        cancellation behind that strikes here.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            await asyncio.to_thread(kill_tree, self.launch.mark)
            return await self._process.wait()
        except asyncio.CancelledError:
            kill_tree(self.launch.mark)  # blocks the loop for some 50 ms
            raise


def import_path() -> dict[str, str]:
    """Children import the same package as we do, from whatever directory they run."""
    mine = str(Path(__file__).resolve().parents[2])
    others = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{mine}{os.pathsep}{others}" if others else mine}


def open_log(path: Path, header: str) -> int:
    """Descriptor that appends to `path`, behind `header`; a long log is put aside first. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.1"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if header:
        os.write(log, f"{header}\n".encode())
    return log


def describe_exit(status: int) -> str:
    """In words: `exit status 1`, or `killed by SIGKILL` for a negative status."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def mark_this_process() -> str:
    """Give this daemon a fresh mark that everything it starts inherits; call before anything is started."""
    mark = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    os.environ[TREE_VARIABLE] = mark
    return mark


async def keep_reaper(mark: str) -> None:
    """Run the reaper for as long as this coroutine runs; another one if somebody kills it.

    The write end of its pipe is held by this process alone (close-on-exec), so that it closes with it.
    """
    while True:
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dilocoxd.ipc.reaper",
                mark,
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                env={**{k: v for k, v in os.environ.items() if k != TREE_VARIABLE}, **import_path()},
                start_new_session=True,
            )
            os.close(read_end)
            read_end = -1
            await process.wait()
        finally:
            if read_end >= 0:
                os.close(read_end)
            os.close(write_end)
        await asyncio.sleep(_REAPER_RESTART_S)


async def nap(seconds: float) -> float:
    """Sleep; how much later than asked the loop came back (blocked, starved of CPU, or the process was frozen)."""
    clock = asyncio.get_running_loop().time
    asked = clock() + seconds
    await asyncio.sleep(seconds)
    return max(0.0, clock() - asked)
