"""A few words of the newest snapshot's model for an operator: `dilocoxd generate` in a process of its own.

The daemon touches no tensor. The process has the least priority, half of the memory that is free when it begins, and a
time limit; the kernel ends it before anything else when memory runs out. Nothing is written to disk.
"""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dilocoxd.answers.site import Sample
from dilocoxd.answers.words import in_bytes
from dilocoxd.daemon.workers.supervisor import describe_exit, import_path
from dilocoxd.errors import CommandRefused
from dilocoxd.ipc.machine_memory import machine_memory
from dilocoxd.store.rundir import RunDir
from dilocoxd.store.snapshots import list_rounds

INTERVAL_S: Final = 60.0
"""Between the beginnings of two texts: it takes CPU from the trainers, however little."""
LIMIT_S: Final = 300.0
"""Long enough for a model of some 10 GB from a slow disk, on a machine that trains."""
NUM_TOKENS: Final = 64
MEMORY_MIN: Final = 768 << 20
"""Bytes: torch itself and a small model."""
NICE: Final = 19
FIRST_TO_GO: Final = "1000"
"""oom_score_adj (proc(5)): the kernel ends this process first."""
REASON_MAX: Final = 400
STOPS: Final = "the daemon stops; `dilocoxd generate RUN_DIR` makes one without it"


class Sampler:
    """One text at a time; `shown` is what operators see. On the daemon's loop."""

    def __init__(self, run_dir: RunDir, *, has_own_loop: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`has_own_loop`: the module is somebody's own, which only that loop can build."""
        self.shown = Sample()
        self._run_dir = run_dir
        self._has_own_loop = has_own_loop
        self._clock = clock
        self._begun_at = -INTERVAL_S
        self._wanted: asyncio.Queue[tuple[int, str]] = asyncio.Queue(1)

    async def ask(self, prompt: str) -> str:
        """Have a text made that goes on from `prompt`; a sentence. Raises CommandRefused."""
        if self._has_own_loop:
            raise CommandRefused(
                "a loop of your own trains this run, and only it can build the model; load"
                " RUN_DIR/snapshots/ROUND/anchor.safetensors into it"
            )
        rounds = await asyncio.to_thread(list_rounds, self._run_dir.snapshots)
        if not rounds:
            raise CommandRefused(
                "there is no snapshot yet to make a text with; wait for the first one, or write one"
                " (`dilocoxd snapshot`)"
            )
        if self.shown.state == "running":
            raise CommandRefused("a text is being made already; wait for it")
        left_s = self._begun_at + INTERVAL_S - self._clock()
        if left_s > 0:
            raise CommandRefused(f"one text a minute, for it takes time from training; try again in {left_s:.0f} s")
        self._begun_at = self._clock()
        self.shown = replace(self.shown, state="running", text=f"the model of round {rounds[-1]} writes")
        self._wanted.put_nowait((rounds[-1], prompt))
        return f"the model of round {rounds[-1]} writes at the lowest priority; see /v1/sample"

    async def run(self) -> None:
        """Make what is asked for, until cancelled; a text under way ends with it."""
        while True:
            number, prompt = await self._wanted.get()
            try:
                written = await self._written(number, prompt)
            except asyncio.CancelledError:
                self.shown = replace(self.shown, state="failed", text=f"no text, {STOPS}")
                raise
            except TimeoutError:
                self._failed(f"it took longer than {LIMIT_S:g} s and was ended")
            except (OSError, _FailedError) as error:
                self._failed(str(error))
            else:
                self.shown = Sample(
                    state="done",
                    round=number,
                    prompt=prompt,
                    written=written.removeprefix(prompt).removesuffix("\n"),
                    took_s=self._clock() - self._begun_at,
                    text=f"by the model of round {number}",
                )

    def _failed(self, reason: str) -> None:
        self.shown = replace(self.shown, state="failed", text=f"no text, training goes on: {reason}"[:REASON_MAX])

    async def _written(self, number: int, prompt: str) -> str:
        memory = (await asyncio.to_thread(machine_memory)).available // 2
        if memory < MEMORY_MIN:
            raise _FailedError(f"half of the free memory is {in_bytes(memory)}, and {in_bytes(MEMORY_MIN)} are needed")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dilocoxd", "generate", str(self._run_dir.path.absolute())),
            *("--round", str(number), "--max-tokens", str(NUM_TOKENS), f"--prompt={prompt}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **import_path(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"},
            start_new_session=True,
        )
        try:
            with contextlib.suppress(ProcessLookupError):
                hold_back(process.pid, memory)
            async with asyncio.timeout(LIMIT_S):
                out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            lines = errors.decode("utf-8", "replace").split("\n")
            said = next((line for line in reversed(lines) if line.strip()), "").removeprefix("error: ")
            raise _FailedError(said if process.returncode > 0 and said else describe_exit(process.returncode))
        return out.decode("utf-8", "replace")


class _FailedError(Exception):
    """No text came of it, and why."""


def hold_back(pid: int, memory: int) -> None:
    """Give the process, before it has threads, the least priority and at most `memory` bytes of its own.

    Raises ProcessLookupError if it is gone.
    """
    os.setpriority(os.PRIO_PROCESS, pid, NICE)
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(FileNotFoundError):
        (Path("/proc") / str(pid) / "oom_score_adj").write_text(FIRST_TO_GO, "ascii")
