"""The daemon's end of a real outer worker: real process, real memfds, real local socket.

Buffers stay when the worker is killed and are attached to its successor, as the daemon does it.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.wire.local import worker as local_worker
from dilocoxd.wire.local.outer_worker import Described
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach, WorkerAlive, WorkerFailed, WorkerHello

TIMEOUT_S = 120.0
_LENGTH = struct.Struct("<I")

TINY_MODEL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "intermediate_size": 32,
    "seq_len": 16,
}


class WorkerDied(Exception):
    """The worker closed its socket; `returncode` is negative for a signal."""


def tiny_manifest(**changes: dict[str, Any]) -> Manifest:
    """A run with about 9,000 parameters in several segments; `changes` override fields of sections."""
    tables: dict[str, dict[str, Any]] = {
        "run": {"name": "test", "created": "2026-01-01T00:00:00Z"},
        "model": dict(TINY_MODEL),
        "data": {"corpus": "english"},
        "inner": {"lr": 1e-3, "total_steps": 100, "batch_sequences": 4, "microbatches": 2, "warmup_steps": 1},
        "outer": {"optimizer": "nesterov", "lr": 0.7, "momentum": 0.9},
        "strategy": {"inner_steps": 10, "codec": "int4", "segment_elements_max": 4096},
        "round": {"peers_max": 4},
    }
    for section, fields in changes.items():
        tables[section] = tables.get(section, {}) | fields
    return manifest_from_tables(tables, source="test")


class Process(Protocol):
    """What is needed of a started worker."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Launcher = Callable[[dict[str, str]], Process]
"""Starts an outer worker with this environment (harness/forks.py: `Forks.outer`)."""


class OuterDaemon:
    """Starts outer workers for one run directory and talks to them. Use as a context manager."""

    def __init__(self, directory: Path, manifest: Manifest, launch: Launcher) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.toml").write_text(manifest.to_toml())
        (directory / "site.toml").write_text("[workers]\nouter_nice = 0\n")
        self._launch = launch
        # Socket paths are limited to about 100 bytes; pytest's directories may be longer.
        self._socket_directory = tempfile.TemporaryDirectory(prefix="dlx")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"{self._socket_directory.name}/sock")
        self._listener.listen(1)
        self._listener.settimeout(TIMEOUT_S)
        self._fds: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._received = bytearray()
        self._next_request = 0
        self._later: list[Any] = []
        self.alive: list[WorkerAlive] = []
        self.process: Process | None = None
        self._socket: socket.socket | None = None
        self.described: Described | None = None
        self.is_attached = False

    def __enter__(self) -> OuterDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, **environment: str) -> Described:
        """Start a worker and attach the buffers (created at the first start)."""
        settings = {
            "DILOCOXD_SOCKET": f"{self._socket_directory.name}/sock",
            "DILOCOXD_RUN_DIR": str(self.directory),
            "DILOCOXD_GENERATION": "0",
            "OMP_NUM_THREADS": "1",
        }
        self.process = self._launch(settings | environment)
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(TIMEOUT_S)
        self._received.clear()
        hello = self.receive()
        assert isinstance(hello, WorkerHello) and hello.role == "outer", hello
        described = self.receive()
        assert isinstance(described, Described), described
        self.described = described
        self._attach(described)
        self.is_attached = True
        return described

    def share_buffers(self, descriptors: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Attach these instead of buffers of our own; they stay whoever else's they are."""
        self._fds.update({name: os.dup(fd) for name, fd in descriptors.items()})
        self._sizes.update(sizes)

    def _attach(self, described: Described) -> None:
        for buffer in described.buffers:
            if buffer.name not in self._fds:
                fd = os.memfd_create(f"dilocoxd-{buffer.name}", os.MFD_CLOEXEC)
                os.ftruncate(fd, buffer.size)
                self._fds[buffer.name] = fd
                self._sizes[buffer.name] = buffer.size
        message = Attach(tuple(self._fds), tuple(self._sizes.values()))
        body = LOCAL_MESSAGES.encode(message)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._fds.values()))]
        assert self._socket is not None
        self._socket.sendmsg([_LENGTH.pack(len(body)) + body], ancillary)

    def send(self, message: Any) -> None:
        body = LOCAL_MESSAGES.encode(message)
        assert self._socket is not None
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Any:
        """Next message that is not a sign of life. Raises WorkerDied."""
        while True:
            message = self._receive_any()
            if not isinstance(message, WorkerAlive):
                return message
            self.alive.append(message)

    def _receive_any(self) -> Any:
        while True:
            if len(self._received) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    body = bytes(self._received[_LENGTH.size : end])
                    del self._received[:end]
                    return LOCAL_MESSAGES.decode(body)
            assert self._socket is not None
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError as error:
                raise self._death() from error
            if not data:
                raise self._death()
            self._received += data

    def _death(self) -> WorkerDied:
        assert self.process is not None
        return WorkerDied(f"exit code {self.process.wait(TIMEOUT_S)}")

    def number(self) -> int:
        """A new request number."""
        self._next_request += 1
        return self._next_request

    def ask(self, kind: type, *arguments: Any) -> Any:
        """Send a request and return its answer (StateReady, WorkerFailed, ...)."""
        request = self.number()
        self.send(kind(request, *arguments))
        return self.answer(request)

    def answer(self, request: int) -> Any:
        """The answer to a request, also when another one comes first."""
        while True:
            for index, message in enumerate(self._later):
                if message.request == request:
                    return self._later.pop(index)
            self._later.append(self.receive())

    def do(self, kind: type, *arguments: Any) -> Any:
        """`ask`, and the answer must not be a failure."""
        answer = self.ask(kind, *arguments)
        assert not isinstance(answer, WorkerFailed), answer
        return answer

    def kill(self) -> None:
        """SIGKILL the worker and wait for its end."""
        assert self.process is not None and self._socket is not None
        self.is_attached = False
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # killed, and reaped, but not told yet
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        self._socket.close()

    def hang_up(self) -> None:
        """Close our end of the socket, as a dying daemon does."""
        assert self._socket is not None
        self._socket.close()

    def stop(self) -> int:
        """Ask the worker to stop; its exit code."""
        self.send(local_worker.Stop())
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process is not None:
            self.kill()
        self._listener.close()
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._socket_directory.cleanup()

    def fd(self, name: str) -> int:
        return self._fds[name]

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a buffer."""
        return os.pread(self._fds[name], self._sizes[name] if length is None else length, offset)

    def write(self, name: str, data: bytes, offset: int = 0) -> None:
        os.pwrite(self._fds[name], data, offset)

    def floats(self, name: str) -> torch.Tensor:
        """A copy of a float32 buffer."""
        return torch.frombuffer(bytearray(self.read(name)), dtype=torch.float32)

    def write_floats(self, name: str, values: torch.Tensor) -> None:
        self.write(name, values.contiguous().view(torch.uint8).numpy().tobytes())

    def allocated(self, name: str) -> int:
        """Bytes of memory that a buffer really takes."""
        return os.fstat(self._fds[name]).st_blocks * 512

    def mapped(self, name: str) -> mmap.mmap:
        return mmap.mmap(self._fds[name], self._sizes[name])
