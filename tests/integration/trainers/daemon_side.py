"""The daemon's side of the local socket for tests of real trainer processes: real ranks, real codec, real memfds.

It decides nothing: a test sends commands and waits for answers, and looks into the shared buffers.
"""

import array
import contextlib
import os
import queue
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.site import ParallelSection, SiteConfig
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.models import ModelConfig, init_parameter, init_std, param_specs
from dilocoxd.wire.layout import Layout, make_layout
from dilocoxd.wire.local import buffers as local_buffers, registry, trainer as local_trainer, worker as local_worker
from tests.harness.outer_worker.forks import TRAINER, ForkedProcess, Forks

WAIT_S = 120.0
M = TypeVar("M")
_LENGTH = struct.Struct("<I")

WORDS = ("sum", "root", "size", "prime", "large", "field", "ring", "number", "group", "proof", "is", "of", "the")


def english_like_text(num_lines: int = 3000) -> str:
    """Deterministic text with some structure to learn."""
    lines = []
    for index in range(num_lines):
        picked = [WORDS[(index * step + step) % len(WORDS)] for step in (1, 3, 5, 7, 11, 13)]
        lines.append(" ".join(picked) + f" {index % 10}.\n")
    return "".join(lines)


def make_tables(corpus: Path, **model: Any) -> dict[str, Any]:
    """Tables of a run.toml small enough for tests."""
    return {
        "run": {"name": "test"},
        "model": {
            "vocab_size": 300,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 2,
            "num_kv_heads": 2,
            "intermediate_size": 48,
            "seq_len": 16,
            **model,
        },
        "data": {"corpus": str(corpus), "validation_sequences": 8},
        "inner": {"lr": 5e-3, "total_steps": 200, "batch_sequences": 4, "microbatches": 4},
        "strategy": {"inner_steps": 4, "segment_elements_max": 4096},
    }


class TrainerSite:
    """One site's trainers and the buffers that the daemon owns; survives restarts of the trainers."""

    def __init__(
        self,
        folder: Path,
        forks: Forks,
        *,
        model: dict[str, Any] | None = None,
        site: SiteConfig | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """`model`, `data`: beside what stands in their tables."""
        self.folder = folder
        self._forks = forks
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder.parent / "corpus.txt"
        if not corpus.exists():
            corpus.write_text(english_like_text(), encoding="utf-8")
        tables = make_tables(corpus, **(model or {}))
        tables["data"] |= data or {}
        self.manifest: Manifest = manifest_from_tables(tables, source="test")
        self.site = site or SiteConfig(parallel=ParallelSection(threads_per_rank=1, stages=2))
        (folder / "run.toml").write_text(self.manifest.to_toml(), encoding="utf-8")
        (folder / "site.toml").write_text(self.site.to_toml(), encoding="utf-8")
        self.layout: Layout = make_layout(
            param_specs(ModelConfig.from_section(self.manifest.model)), self.manifest.strategy.segment_elements_max
        )
        self._fds = {name: os.memfd_create(name) for name in (local_buffers.ANCHOR, local_buffers.PHASE)}
        for fd in self._fds.values():
            os.ftruncate(fd, self.layout.numel * 4)
        self.write(local_buffers.ANCHOR, self.genesis())
        self.write(local_buffers.PHASE, self.genesis())
        self._generation = 0
        self._connections: dict[int, socket.socket] = {}
        self._server: socket.socket | None = None
        self.ranks: list[ForkedProcess] = []
        self.pids: dict[int, int] = {}
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.held: list[Any] = []

    def genesis(self) -> Tensor:
        """State 0 of the run, flat."""
        model = self.manifest.model
        flat = torch.empty(self.layout.numel)
        for spec in self.layout.params:
            span = self.layout.span(spec.name)
            std = init_std(spec.name, model.init_std, model.num_layers)
            init_parameter(spec.name, spec.shape, self.manifest.seeds.model, flat[span.start : span.stop], std=std)
        return flat

    def read(self, name: str) -> Tensor:
        """Copy of a shared buffer."""
        data = os.pread(self._fds[name], self.layout.numel * 4, 0)
        return torch.frombuffer(bytearray(data), dtype=torch.float32).clone()

    def write(self, name: str, values: Tensor) -> None:
        """Fill a shared buffer."""
        os.pwrite(self._fds[name], values.numpy().tobytes(), 0)

    def launch(self, module: str = TRAINER, **environment: str) -> None:
        """Start a generation of trainers, ranks that run `main()` of `module`, and serve their connections."""
        self._generation += 1
        path = self.folder / "sock"
        path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(16)
        self.inbox, self.held = queue.Queue(), []
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()
        common = {
            "DILOCOXD_SOCKET": str(path),
            "DILOCOXD_RUN_DIR": str(self.folder),
            "DILOCOXD_GENERATION": str(self._generation),
            "DILOCOXD_PEER": "QmTest",
            "DILOCOXD_CACHE": str(self.folder.parent / "cache"),
        }
        output = self.folder / f"trainer-{self._generation}.log"
        with output.open("ab") as log:
            self.ranks = self._forks.ranks(
                module, {**common, **environment}, self.site.parallel.ranks, output=log.fileno()
            )

    def send(self, message: Any, stage_rank: int = 0) -> None:
        """One message to a rank."""
        body = registry.LOCAL_MESSAGES.encode(message)
        self._connections[stage_rank].sendall(_LENGTH.pack(len(body)) + body)

    def expect(self, kind: type[M]) -> M:
        """Next message of this kind; others stay for later. Fails with the trainers' log after WAIT_S."""
        for index, message in enumerate(self.held):
            if isinstance(message, kind):
                return self.held.pop(index)  # type: ignore[no-any-return]
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                message = self.inbox.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind.__name__} came; held {self.held[-5:]}\n{self.log()}") from None
            if isinstance(message, kind):
                return message
            if isinstance(message, local_worker.WorkerFailed):
                raise AssertionError(f"trainer failed: {message}\n{self.log()}")
            self.held.append(message)

    def expect_failure(self) -> local_worker.WorkerFailed:
        """The failure that a rank reports."""
        while True:
            message = self.inbox.get(timeout=WAIT_S)
            if isinstance(message, local_worker.WorkerFailed):
                return message

    def log(self) -> str:
        """Output of the newest generation."""
        return (self.folder / f"trainer-{self._generation}.log").read_text(encoding="utf-8", errors="replace")[-6000:]

    def start_training(
        self, phase: int = 0, round_index: int = 0, inner_steps: int = 4, samples: tuple[int, ...] = ()
    ) -> None:
        """StartTraining and its answer, once all ranks are attached."""
        for _ in range(self.site.parallel.ranks):
            self.expect(local_worker.WorkerHello)
        self.expect(local_trainer.TrainerReady)
        self.send(
            local_trainer.StartTraining(
                PhaseId(phase),
                RoundIndex(round_index),
                inner_steps,
                str(self.folder / "site" / "trainer"),
                samples=samples,
            )
        )
        taken = self.expect(local_trainer.AnchorTaken)
        assert (taken.how, taken.round, taken.phase) == ("start", round_index, phase)

    def stop_training(self) -> None:
        """Trainers at a boundary save what they have, and end."""
        self.send(local_trainer.StopTraining())
        self.expect(local_trainer.TrainerStopped)
        self.wait_exit()

    def wait_exit(self) -> int:
        """The first exit status of a rank that is not 0, when all have ended; 0 if there is none."""
        return next((status for rank in self.ranks if (status := rank.wait(WAIT_S))), 0)

    def hang_up(self) -> None:
        """What a killed daemon does: close the sockets without a word."""
        for connection in list(self._connections.values()):
            # A reader thread still holds the file: only a shutdown reaches the other end at once.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """End everything that this site started."""
        for rank in self.ranks:
            if rank.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
                rank.wait(WAIT_S)
        self.hang_up()
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, self.inbox), daemon=True).start()

    def _serve(self, connection: socket.socket, inbox: "queue.Queue[Any]") -> None:
        stream = connection.makefile("rb")
        while True:
            try:
                header = stream.read(_LENGTH.size)
                body = stream.read(_LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else b""
            except (OSError, ValueError):
                return
            if not body:
                return
            message = registry.LOCAL_MESSAGES.decode(body)
            if isinstance(message, local_worker.WorkerHello):
                self._connections[message.stage_rank] = connection
                self.pids[message.stage_rank] = message.pid
                try:
                    self._attach(connection)
                except OSError:
                    return
            inbox.put(message)

    def _attach(self, connection: socket.socket) -> None:
        size = self.layout.numel * 4
        body = registry.LOCAL_MESSAGES.encode(local_worker.Attach(tuple(self._fds), tuple(size for _ in self._fds)))
        fds = array.array("i", self._fds.values())
        connection.sendmsg([_LENGTH.pack(len(body)) + body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())])
