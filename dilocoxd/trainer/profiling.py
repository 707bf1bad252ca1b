"""Records inner steps with torch's profiler when an operator asks for it, into a file that trace viewers open.

Every rank begins with the same step, because commands reach all of them at the same boundary, and writes a file of its
own. What lies between two recorded steps (a boundary, a wait for the daemon) is recorded too. Numbers are not touched,
and whatever goes wrong is told and over: training goes on.
"""

from __future__ import annotations

import gzip
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

# Not torch.profiler, which is a shell around it: that one imports torch's compiler, for seconds, inside the trainer.
from torch.autograd.profiler import profile, record_function

from dilocoxd.ipc.profile_files import trace_name
from dilocoxd.wire.local import trainer as local_trainer, worker as local_worker

log = logging.getLogger(__name__)

DOING: Final = "write the profile"
PROBLEM_LENGTH_MAX: Final = 300
_COPY_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 1 << 13
"""More than the last field of a trace, which is its own path."""
_GZIP_LEVEL: Final = 1
"""Training waits for it; higher levels take three times as long for a fifth less."""


def is_whole(trace: Path) -> bool:
    """Whether a trace that torch has written has its end: torch tells of a full disk on stderr at best."""
    if not trace.exists():
        return False
    with trace.open("rb") as file:
        file.seek(max(0, trace.stat().st_size - _TAIL_BYTES))
        tail = file.read().rstrip()
    return b'"traceName"' in tail and tail.endswith(b"}")


class StepRecorder:
    """Off until `ask`; then the next steps of this rank are recorded and written, once."""

    def __init__(self, stage_rank: int, device: torch.device, send: Callable[[Any], None]) -> None:
        self._stage_rank = stage_rank
        self._device = device
        self._send = send
        self._asked: local_trainer.Profile | None = None
        self._trace: Any = None  # torch's profile, whose methods have no types; None: off
        self._first_step = 0
        self._num_steps = 0

    def ask(self, command: local_trainer.Profile) -> None:
        """Record from the next inner step on."""
        if self._asked is not None:
            log.warning("asked for a profile while one is recorded: not done")  # the daemon refuses that
            return
        self._asked, self._num_steps = command, 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around inner step `number` (the global one): records it if that was asked for, and writes after the last."""
        asked = self._asked
        if asked is not None and self._trace is None:
            self._begin(number)
        if asked is None or self._trace is None:
            yield
            return
        with record_function(f"inner step {number}"):
            yield
        self._num_steps += 1
        if self._num_steps >= asked.steps:
            self.finish("")

    def finish(self, why: str) -> None:
        """Stop recording, write what there is and tell the daemon; without a recording nothing happens.

        Args:
            why: it ends before the last step; told where nothing was recorded yet.
        """
        asked, trace = self._asked, self._trace
        self._asked = self._trace = None
        if asked is None:
            return
        if trace is None:
            self._tell(0, why)
            return
        try:
            size = self._write(trace, Path(f"{asked.folder}-step{self._first_step}"))
        except (OSError, RuntimeError) as error:
            self._tell(0, str(error))
        else:
            self._tell(size, "")

    def _begin(self, number: int) -> None:
        self._first_step = number
        trace: Any = profile(use_kineto=True, use_device="cuda" if self._device.type == "cuda" else None)
        try:
            trace.__enter__()
        except RuntimeError as error:
            with suppress(RuntimeError):
                trace.__exit__(None, None, None)
            self._asked = None
            self._tell(0, str(error))
            return
        self._trace = trace
        if self._stage_rank == 0:
            self._send(local_trainer.TraceBegun(first_step=number))

    def _write(self, trace: Any, folder: Path) -> int:
        """Bytes of the file, which appears whole or not at all. Raises OSError, RuntimeError."""
        self._live()
        trace.__exit__(None, None, None)
        folder.mkdir(parents=True, exist_ok=True)
        raw = folder / f".rank{self._stage_rank}.json"
        packed = folder / f".{trace_name(self._stage_rank)}"
        try:
            self._live()
            trace.export_chrome_trace(str(raw))
            if not is_whole(raw):
                raise OSError("torch could not write the whole trace: is the disk full?")
            self._live()
            with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=_GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            packed.replace(folder / trace_name(self._stage_rank))
        finally:
            for left in (raw, raw.with_name(f"{raw.name}.tmp"), packed):
                left.unlink(missing_ok=True)
            with suppress(OSError):  # other ranks have files in it
                folder.rmdir()
        return (folder / trace_name(self._stage_rank)).stat().st_size

    def _live(self) -> None:
        """Long traces take seconds; a trainer that says nothing would be taken for hung."""
        self._send(local_worker.WorkerAlive(doing=DOING, per_mille=0))

    def _tell(self, size: int, problem: str) -> None:
        if problem:
            log.warning("no profile, training goes on: %s", problem)
        self._send(
            local_trainer.TraceWritten(
                stage_rank=self._stage_rank,
                first_step=self._first_step if self._num_steps else 0,
                steps=self._num_steps,
                size_bytes=size,
                problem=" ".join(problem.split())[:PROBLEM_LENGTH_MAX],
            )
        )
