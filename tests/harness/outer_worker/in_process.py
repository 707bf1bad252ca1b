"""An outer worker inside the test: the same Worker class and messages, on memfds as the daemon makes them, without a
process."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.requests import Worker
from dilocoxd.wire.local.outer_worker import SnapshotSaved, WriteSnapshot
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon


class InnerWorker(OuterDaemon):
    """Answers `ask` and `do` at once; for tests that need a plan which no manifest names."""

    def __init__(self, plan: OuterPlan) -> None:
        self.described = plan.described()
        self._descriptors = {one.name: os.memfd_create(f"dilocoxd-{one.name}") for one in self.described.buffers}
        weakref.finalize(self, _close, tuple(self._descriptors.values()))
        self._maps = {one.name: _mapped(self._descriptors[one.name], one.size) for one in self.described.buffers}
        self._sent: list[Any] = []
        self._next_request = 0
        buffers, report = MappedBuffers(plan, self._maps, self._descriptors), Reporter(_Collector(self._sent))
        self._worker = Worker(plan, buffers, report)

    def ask(self, kind: type, *arguments: Any) -> Any:
        self._worker.handle(kind(self.number(), *arguments))
        return self._sent.pop()

    def do(self, kind: type, *arguments: Any) -> Any:
        answer = self.ask(kind, *arguments)
        assert not isinstance(answer, WorkerFailed), answer
        return answer

    def write_snapshot(self, directory: Path) -> None:
        """Write the shared state to `directory` and wait for it."""
        self._worker.handle(WriteSnapshot(self.number(), str(directory)))
        self._worker.finish()
        saved = self._sent.pop()
        assert isinstance(saved, SnapshotSaved), saved

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        stop = len(self._maps[name]) if length is None else offset + length
        return self._maps[name][offset:stop]

    def write(self, name: str, data: bytes, offset: int = 0) -> None:
        self._maps[name][offset : offset + len(data)] = data

    def floats(self, name: str) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.read(name)), dtype=torch.float32)


def _mapped(fd: int, size: int) -> mmap.mmap:
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size)


def _close(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)


class _Collector:
    def __init__(self, sent: list[Any]) -> None:
        self._sent = sent

    def send(self, message: Any) -> None:
        self._sent.append(message)
