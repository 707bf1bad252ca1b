"""Passes on what daemon and trainers of a stage on a node say to each other, and moves what the trainers ask for.

One thread: what a rank asks for is done before the next message of the node is read, but for bytes of the node, which
come piece by piece. The head's checkpoint folder is ours to choose; a node names only a file in it.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ipc.client import GENERATION_VARIABLE, DaemonConnection, DaemonGone
from dilocoxd.ipc.nodes.faults import HEARD_S, NodeFault, full_fault, tell_fault
from dilocoxd.store.durable import fsync_directory, write_all
from dilocoxd.store.rundir import RunDir
from dilocoxd.store.tensor_header import read_header
from dilocoxd.trainer.away.hang import SharedLink, keep_told
from dilocoxd.trainer.away.moving import moments_folder
from dilocoxd.trainer.checkpoint import newest_complete, take_back
from dilocoxd.wire.local import buffers as local_buffers, node
from dilocoxd.wire.local.moves import GiveBytes, GiveMoments, Moved, TakeBytes, TakeMoments
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach, WorkerAlive, WorkerFailed, WorkerHello

ALIVE_INTERVAL_S: Final = 1.0
MOVED_BUFFERS: Final = {local_buffers.ANCHOR: False, local_buffers.PHASE: True, local_buffers.LEFT_OUT: False}
"""What ranks move; whether they write it."""
_FILE = re.compile(r"stage-\d{1,6}-of-\d{1,6}\.safetensors")
_STEP_MAX: Final = 10**12


class StageEnded(Exception):
    """The trainers on the node have ended, or one of them has."""

    def __init__(self, reason: str, fault: NodeFault | None = None) -> None:
        super().__init__(reason)
        self.fault = fault
        self.is_well = all(each.endswith("exit status 0") for each in reason.split(", "))


@dataclass(slots=True)
class _Fetching:
    """Bytes of the node that come; `write` takes them, `done` what went wrong."""

    message: node.FetchBytes
    write: Callable[[int, bytes], None]
    done: Callable[[str], None]
    problem: str = ""


@dataclass(slots=True)
class _Rank:
    """One trainer on the node, and the socket that we hold for it."""

    daemon: DaemonConnection
    told: float = field(default_factory=time.monotonic)

    def alive(self) -> None:
        """Once a second: what is moved takes its time, and somebody may be waiting for the rank."""
        if time.monotonic() - self.told >= ALIVE_INTERVAL_S:
            self.told = time.monotonic()
            self.daemon.send(WorkerAlive("move", 0))


class StageRelay:
    """Of one generation of one stage. `run` ends with an error: whose end came first."""

    def __init__(
        self,
        link: SharedLink,
        start: node.StartStage,
        run_directory: Path,
        watch: Callable[[DaemonConnection], None],
    ) -> None:
        """`watch` is told of each socket to the daemon: nothing is read from it here, and its end is for somebody else
        to see."""
        self._link = link
        self._watch = watch
        self._start = start
        self._run_directory = run_directory
        self._numbers = range(start.first_rank, start.first_rank + start.here)
        self._checkpoints = RunDir(run_directory).trainer_checkpoint
        self._ranks: dict[int, _Rank] = {}
        self._fetching: deque[_Fetching] = deque()
        """In the order in which they come; of the first the node was asked."""
        self._number = 0

    @property
    def name(self) -> str:
        """For people."""
        first, last = self._numbers[0], self._numbers[-1]
        return f"stage rank {first}" if first == last else f"stage ranks {first} to {last}"

    def run(self) -> None:
        """Raises DaemonGone, StageEnded, EOFError, OSError, WireError."""
        while True:
            message = self._link.receive()
            match message:
                case node.FromPart(body, worker):
                    self._said(worker, LOCAL_MESSAGES.decode(body))
                case node.Fetched():
                    self._fetched(message)
                case node.HangFile():
                    keep_told(self._run_directory, self._numbers, message)
                case node.PartEnded(reason):
                    raise StageEnded(reason, full_fault(message))
                case _:
                    raise WireError("unexpected_message", f"{type(message).__name__} from a node")

    def tell_failure(self, reason: str) -> None:
        """The daemon hears why this ends, if it still listens."""
        self._tell_daemon(WorkerFailed(0, "failed", reason[:4000]))

    def tell_fault(self, fault: NodeFault) -> None:
        """The daemon hears of the node, and ends us."""
        if self._tell_daemon(fault.message()):
            time.sleep(HEARD_S)  # `watch` sees the daemon's end of it
        else:
            tell_fault(fault, self._hello(0))

    def _tell_daemon(self, message: WorkerFailed) -> bool:
        for rank in self._ranks.values():
            try:
                rank.daemon.send(message)
            except DaemonGone:
                continue
            return True
        return False

    def _hello(self, worker: int) -> WorkerHello:
        generation, number = int(os.environ.get(GENERATION_VARIABLE, "0")), self._start.first_rank + worker
        return WorkerHello("trainer", os.getpid(), generation, number, self._start.num_ranks)

    # --- what ranks say -----------------------------------------------------------------------------------------------

    def _said(self, worker: int, message: Any) -> None:
        if isinstance(message, WorkerHello):
            self._let_in(worker)
            return
        rank = self._ranks.get(worker)
        if rank is None:
            raise WireError("unexpected_message", "a rank of a node speaks before it said hello")
        match message:
            case TakeBytes(number, name, places):
                for first, stop in _checked(rank, name, places):
                    self._send_pieces(rank, name, first, stop)
                self._answer(worker, number)
            case GiveBytes(number, name, places):
                self._take_bytes(worker, number, name, places)
            case TakeMoments(number, tensors):
                self._answer(worker, number, self._send_moments(rank, worker, set(tensors)))
            case GiveMoments():
                self._take_moments(worker, message)
            case None:
                pass
            case _:
                rank.daemon.send(message)

    def _let_in(self, worker: int) -> None:
        if worker >= self._start.here or worker in self._ranks:
            raise WireError("unexpected_message", "a node has a rank that is not wanted")
        daemon = DaemonConnection()
        daemon.send(self._hello(worker))
        attach = daemon.receive()
        if not isinstance(attach, Attach):
            raise WireError("unexpected_message", f"{type(attach).__name__} before Attach")
        self._ranks[worker] = _Rank(daemon)
        self._watch(daemon)
        self._tell(worker, attach)

    def _tell(self, worker: int, message: Any) -> None:
        self._link.send(node.ToPart(LOCAL_MESSAGES.encode(message), worker))

    def _answer(self, worker: int, number: int, problem: str = "") -> None:
        self._tell(worker, Moved(number, problem[:1000]))

    # --- buffers ------------------------------------------------------------------------------------------------------

    def _send_pieces(self, rank: _Rank, name: str, first: int, stop: int) -> None:
        fd = rank.daemon.descriptors[name]
        for start in range(first, stop, node.PIECE_BYTES):
            # Through no mapping, which would make pages of LEFT_OUT that nobody wrote.
            self._link.send(node.WriteBuffer(name, start, os.pread(fd, min(node.PIECE_BYTES, stop - start), start)))
            rank.alive()

    def _take_bytes(self, worker: int, number: int, name: str, places: tuple[int, ...]) -> None:
        rank = self._ranks[worker]
        view = memoryview(rank.daemon.buffers[name]) if MOVED_BUFFERS.get(name) else None
        wanted = list(_checked(rank, name, places))
        if view is None:
            raise WireError("unexpected_message", f"a rank of a node writes {name}")
        if not wanted:
            self._answer(worker, number)
        problems: list[str] = []
        left = len(wanted)

        def write(offset: int, data: bytes) -> None:
            view[offset : offset + len(data)] = data
            rank.alive()

        def done(problem: str) -> None:
            nonlocal left
            left -= 1
            problems.extend([problem] if problem else [])
            if not left:
                self._answer(worker, number, "; ".join(problems))

        for first, stop in wanted:
            self._fetch(node.FetchBytes(0, False, name, first, stop), write, done)

    # --- moments ------------------------------------------------------------------------------------------------------

    def _send_moments(self, rank: _Rank, worker: int, tensors: Collection[str]) -> str:
        """Sparse files of the newest set: headers, and of the data what is wanted. What went wrong."""
        below = moments_folder(self._start.first_rank + worker)
        self._link.send(node.RemovePath(below))
        folder = newest_complete(self._checkpoints)
        try:
            for path in sorted(folder.glob("stage-*-of-*.safetensors")) if folder is not None else ():
                self._send_file(rank, path, f"{below}/{path.parent.name}/{path.name}", tensors)
        except (OSError, StoreError) as error:
            return f"reading a checkpoint for a node: {error}"
        return ""

    def _send_file(self, rank: _Rank, path: Path, name: str, tensors: Collection[str]) -> None:
        front, entries, _ = read_header(path)
        with path.open("rb", buffering=0) as file:
            self._link.send(node.MakeFile(name, os.fstat(file.fileno()).st_size))
            places, end = [(0, front)], front
            for entry in entries:
                end += entry.num_bytes
                if entry.name in tensors:
                    places.append((end - entry.num_bytes, end))
            for first, stop in places:
                for start in range(first, stop, node.PIECE_BYTES):
                    data = os.pread(file.fileno(), min(node.PIECE_BYTES, stop - start), start)
                    self._link.send(node.WriteFile(name, start, data))
                    rank.alive()

    def _take_moments(self, worker: int, given: GiveMoments) -> None:
        """Into the head's folder, where the file appears whole or not at all."""
        if not _FILE.fullmatch(given.file) or given.step >= _STEP_MAX or not given.size:
            raise WireError("malformed", f"{given.file!r} is no file of a checkpoint")
        folder = self._checkpoints / f"{given.step:012d}"
        there = f"{moments_folder(self._start.first_rank + worker)}/{folder.name}"
        temporary = folder / f".{given.file}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._answer(worker, given.number, f"writing a checkpoint: {error}")
            return

        def done(problem: str) -> None:
            try:
                _sync_and_close(fd)
                if not problem:
                    temporary.rename(folder / given.file)
                    fsync_directory(folder)
            except OSError as error:
                problem = problem or f"writing a checkpoint: {error}"
            if problem:
                take_back(temporary)
            self._link.send(node.RemovePath(there))
            self._answer(worker, given.number, problem)

        def write(offset: int, data: bytes) -> None:
            write_all(fd, data, offset)
            self._ranks[worker].alive()

        self._fetch(node.FetchBytes(0, True, f"{there}/{given.file}", 0, given.size), write, done)

    # --- bytes of the node --------------------------------------------------------------------------------------------

    def _fetch(
        self, message: node.FetchBytes, write: Callable[[int, bytes], None], done: Callable[[str], None]
    ) -> None:
        self._fetching.append(_Fetching(message, write, done))
        if len(self._fetching) == 1:
            self._ask_next()

    def _ask_next(self) -> None:
        """One after the other: nodes have a limit of what is asked of them at a time."""
        if self._fetching:
            self._number += 1
            first = self._fetching[0]
            first.message = replace(first.message, number=self._number)
            self._link.send(first.message)

    def _fetched(self, got: node.Fetched) -> None:
        if not self._fetching or got.number != self._fetching[0].message.number:
            raise WireError("unexpected_message", "bytes from a node that nobody asked for")
        wanted = self._fetching[0]
        end = got.offset + len(got.data)
        if not wanted.message.first <= got.offset <= end <= wanted.message.stop:
            raise WireError("too_large", "other bytes from a node than were asked for")
        if not got.problem and not wanted.problem:
            try:
                wanted.write(got.offset, got.data)
            except OSError as error:
                wanted.problem = f"writing what a node sent: {error}"
        if got.problem or end == wanted.message.stop:
            self._fetching.popleft()
            wanted.done(got.problem or wanted.problem)
            self._ask_next()


def _sync_and_close(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _checked(rank: _Rank, name: str, places: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and stop of each, inside a buffer that ranks move. Raises WireError."""
    if name not in MOVED_BUFFERS or name not in rank.daemon.buffers or len(places) % 2:
        raise WireError("malformed", f"a rank of a node asks for {name}")
    for first, stop in zip(places[::2], places[1::2], strict=True):
        if not first < stop <= len(rank.daemon.buffers[name]):
            raise WireError("malformed", f"a rank of a node asks for bytes outside {name}")
        yield first, stop
