"""Writes a snapshot of the shared state in the background while updates go on, and loads one.

Consistency without a copy in memory: every segment is written exactly once, by the background thread or, if an update
wants to change it first, by the updating thread. Hashes are taken from the finished files, so they also prove that the
file system gives back what was written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dilocoxd.errors import StoreError
from dilocoxd.ids import RoundIndex
from dilocoxd.ipc.client import DaemonGone
from dilocoxd.ipc.fault import hold_thread
from dilocoxd.outerworker.buffers import tensor_bytes
from dilocoxd.outerworker.failure import RequestFailed, from_store
from dilocoxd.outerworker.journal import JournalState, Update
from dilocoxd.outerworker.plan import FLOAT_BYTES, HEADER_BYTES
from dilocoxd.outerworker.tensor_file import snapshot_files
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store import snapshots
from dilocoxd.store.durable import SteadyWriter, store_error, write_all
from dilocoxd.store.tensor_header import TensorEntry, encode_header, read_header
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_parts import HashSnapshot, SnapshotHashed
from dilocoxd.wire.local.outer_worker import SnapshotSaved, WriteSnapshot
from dilocoxd.wire.local.worker import WorkerFailed


class SnapshotWriter:
    """At most one snapshot at a time; `before_change` must be called before a segment of the shared state changes."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._job: _Job | None = None
        self._hashing: threading.Thread | None = None

    def start(self, request: WriteSnapshot) -> None:
        """Begin; the answer is sent from the background. Raises RequestFailed (busy, not_loaded, disk_full)."""
        self._workspace.require_loaded()
        if self._workspace.state.operation == Update.APPLY:
            # A worker or another part died over it: what the buffers hold is not what the journal says.
            raise RequestFailed("busy", "an entry is half applied; ask again when it is applied")
        if self._job is not None and self._job.is_writing:
            raise RequestFailed("busy", "another snapshot is being written; ask again when it is done")
        self.finish()
        self._job = _Job(self._workspace, request)
        self._job.start()

    def hash_chunks(self, request: HashSnapshot) -> None:
        """One of several parts: hash its chunks of the files that all have written; answered from the background."""
        self.finish()
        self._hashing = threading.Thread(target=self._hash, args=(request,), name="snapshot hashes")
        self._hashing.start()

    def _hash(self, request: HashSnapshot) -> None:
        report, part = self._workspace.report, self._workspace.plan.part
        held, found = [], []
        temporary = snapshots.temporary_directory(Path(request.directory))
        answer: SnapshotHashed | WorkerFailed
        try:
            for name in request.names:
                path = temporary / name
                size = path.stat().st_size
                held.append(held_here(self._workspace, path, size))
                numbers = part.turn(snapshots.chunks_within(size, *held[-1]))
                hashes = snapshots.hash_some_chunks(path, numbers, lambda done: report.pulse("snapshot", 1, 2))
                found.append(bytes.fromhex("".join(hashes)))
            answer = SnapshotHashed(request.request, tuple(found), tuple(held))
        except (OSError, StoreError) as error:
            told = error if isinstance(error, StoreError) else store_error("writing a snapshot", temporary, error)
            failure = from_store(told)
            answer = WorkerFailed(request.request, failure.kind, failure.detail)
        except DaemonGone:
            return
        with contextlib.suppress(DaemonGone):
            report.send(answer)

    def before_change(self, segment: Segment) -> None:
        """Make sure that a running snapshot has this segment's present contents."""
        if self._job is not None:
            self._job.write_segment(segment)

    def finish(self) -> None:
        """Wait until nothing is being written."""
        if self._job is not None:
            self._job.join()
        if self._hashing is not None:
            self._hashing.join()


class _Job:
    """One snapshot. Files are opened and their space reserved in the constructor, so that a full disk shows at once."""

    def __init__(self, workspace: Workspace, request: WriteSnapshot) -> None:
        self._workspace = workspace
        self._request = request
        self._state: JournalState = workspace.state
        known = workspace.leaves
        is_known = known.round == self._state.round and known.whole
        self._leaves = [leaf.hex() for leaf in known.whole] if is_known else [""] * len(workspace.plan.segments)
        self._is_whole = workspace.plan.part.is_whole
        self._started = time.monotonic()
        self._directory = Path(request.directory)
        self._temporary = snapshots.temporary_directory(self._directory)
        self._lock = threading.Lock()
        self._left = {segment.index for segment in workspace.plan.segments}
        self._error: OSError | None = None
        self._fds: list[int] = []
        self._writers: list[SteadyWriter] = []
        self._data_offsets: list[int] = []
        self._thread = threading.Thread(target=self._run, name="snapshot")
        self.is_writing = True
        try:
            self._prepare()
        except OSError as error:
            self._discard()
            raise from_store(store_error("preparing a snapshot", self._directory, error)) from error

    def _prepare(self) -> None:
        plan = self._workspace.plan
        if self._is_whole:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(parents=True, exist_ok=not self._is_whole)
        metadata = {"run_id": plan.run_id, "round": str(self._state.round)}
        for name, entries in snapshot_files(plan):
            # The other parts write the same front, and their own segments.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if self._is_whole else 0)
            fd = os.open(self._temporary / name, flags, 0o644)
            self._fds.append(fd)
            self._writers.append(SteadyWriter(fd))
            header = encode_header(entries, metadata)
            self._reserve(fd, name, len(header), sum(entry.num_bytes for entry in entries))
            self._data_offsets.append(write_all(fd, header, 0))
        if plan.has_memory:
            before_regions = bytes(self._workspace.memory.header_bytes(self._state.round))
            self._data_offsets[-1] = write_all(self._fds[-1], before_regions, self._data_offsets[-1])

    def _reserve(self, fd: int, name: str, front: int, num_bytes: int) -> None:
        """Room for the front and our own segments; the file has its whole length, and the rest of it is somebody's."""
        os.ftruncate(fd, front + num_bytes)
        first, stop = stretch_in_file(self._workspace, name)
        for start, length in ((0, front), (front + first, stop - first)):
            if length:
                os.posix_fallocate(fd, start, length)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def write_segment(self, segment: Segment) -> None:
        """Write a segment unless that is done; a write error ends the snapshot, not the update that wants to go on."""
        with self._lock:
            if self._error is not None or segment.index not in self._left:
                return
            try:
                self._write(segment)
            except OSError as error:
                self._error = error
            self._left.discard(segment.index)

    def _write(self, segment: Segment) -> None:
        workspace = self._workspace
        start = segment.start * 4
        self._writers[0].write(tensor_bytes(workspace.anchor_of(segment)), self._data_offsets[0] + start)
        if workspace.plan.num_slots:
            momentum = tensor_bytes(workspace.buffers.momentum_of(segment))
            self._writers[1].write(momentum, self._data_offsets[1] + start * workspace.plan.num_slots)
        if workspace.plan.memory_bytes(segment):
            offset = self._data_offsets[-1] + workspace.memory.region_start(segment)
            self._writers[-1].write(workspace.memory.region(segment), offset)

    def _run(self) -> None:
        try:
            answer = self._outcome()
            self._discard()
            # Before the answer: who has it may ask for the next snapshot at once.
            self.is_writing = False
            self._workspace.report.send(answer)
        except DaemonGone:
            return  # The main thread sees the same and ends the process.

    def _outcome(self) -> SnapshotSaved | WorkerFailed:
        try:
            return self._write_all()
        except OSError as error:
            failure = from_store(store_error("writing a snapshot", self._directory, error))
        except StoreError as error:
            failure = from_store(error)
        return WorkerFailed(self._request.request, failure.kind, failure.detail)

    def _write_all(self) -> SnapshotSaved:
        segments = self._workspace.plan.segments
        for segment in segments:
            self.write_segment(segment)
            self._workspace.report.pulse("snapshot", segment.index, 2 * len(segments))
        if self._error is not None:
            raise self._error
        hold_thread("snapshot")
        for fd in self._fds:
            os.fsync(fd)
        if not self._is_whole:
            return self._saved(0)  # the daemon publishes it when all parts have written theirs
        names = [name for name, _ in snapshot_files(self._workspace.plan)]
        index = snapshots.SnapshotIndex(
            self._workspace.plan.run_id,
            self._state.round,
            self._state.anchor_sha256.hex(),
            self._state.state_digest.hex(),
            "",
            tuple(snapshots.hash_chunks(self._temporary / name, self._hashed) for name in names),
            tuple(zip([segment.numel for segment in segments], self._leaves, strict=True)),
        )
        snapshots.publish(self._temporary, self._directory, index)
        return self._saved(index.total_bytes)

    def _saved(self, total_bytes: int) -> SnapshotSaved:
        seconds = time.monotonic() - self._started
        directory, number = self._request.directory, RoundIndex(self._state.round)
        return SnapshotSaved(self._request.request, number, directory, total_bytes, seconds)

    def _hashed(self, done: int) -> None:
        self._workspace.report.pulse("snapshot", 1, 2)

    def _discard(self) -> None:
        """Close the files and remove what was not published."""
        with self._lock:
            self._left.clear()
            for fd in self._fds:
                os.close(fd)
            self._fds.clear()
        if self._is_whole:
            shutil.rmtree(self._temporary, ignore_errors=True)


def checked_snapshot(workspace: Workspace, directory: Path, *, is_known: bool = False) -> snapshots.SnapshotIndex:
    """The index of a snapshot whose every hash is right; one of several parts looks at its chunks of them.

    `is_known`: they were looked at. Raises RequestFailed(corrupt_snapshot) if it is damaged or of another run.
    """
    try:
        workspace.report.begin("verify", 1)
        if is_known:
            index = snapshots.read_index(directory)
        else:
            index = snapshots.verify(
                directory,
                lambda done: workspace.report.step(0),
                lambda file: workspace.plan.part.turn(
                    snapshots.chunks_within(file.size, *held_here(workspace, directory / file.name, file.size))
                ),
            )
        if index.run_id != workspace.plan.run_id:
            raise RequestFailed(
                "corrupt_snapshot", f"{directory} is of run {index.run_id}, not {workspace.plan.run_id}"
            )
        for name, entries in snapshot_files(workspace.plan):
            _data_offset(directory / name, entries)
    except StoreError as error:
        raise RequestFailed("corrupt_snapshot", str(error)) from error
    except OSError as error:
        raise RequestFailed("corrupt_snapshot", f"{directory}: {error}") from error
    return index


def held_of_snapshot(
    workspace: Workspace, directory: Path, index: snapshots.SnapshotIndex
) -> tuple[tuple[int, int], ...]:
    """Of each file of a snapshot that was checked, the bytes [first, stop) that this machine has."""
    return tuple(held_here(workspace, directory / file.name, file.size) for file in index.files)


def fill_from_snapshot(
    workspace: Workspace, directory: Path, index: snapshots.SnapshotIndex, begin_replace: Callable[[], None]
) -> None:
    """Fill ANCHOR, MOMENTUM and MEMORY, as far as this process has them, from a snapshot that was checked.

    Raises RequestFailed(corrupt_snapshot).
    """
    memory, files = workspace.memory, snapshot_files(workspace.plan)
    try:
        offsets = [_data_offset(directory / name, entries) for name, entries in files]
        begin_replace()
        workspace.report.begin("load", len(files))
        for (name, _), offset in zip(files, offsets, strict=True):
            first, stop = stretch_in_file(workspace, name)
            if name == snapshots.MEMORY_NAME:
                header = memory.header_bytes(index.round)
                _read_into(directory / name, offset, header, workspace)
                target = memory.regions[first - header.nbytes : stop - header.nbytes]
            else:
                is_anchor = name == snapshots.ANCHOR_NAME
                buffer = local_buffers.ANCHOR if is_anchor else local_buffers.MOMENTUM
                target = workspace.buffers.raw(buffer)[first:stop]
            _read_into(directory / name, offset + first, target, workspace)
    except StoreError as error:
        raise RequestFailed("corrupt_snapshot", str(error)) from error
    except OSError as error:
        raise RequestFailed("corrupt_snapshot", f"{directory}: {error}") from error


def stretch_in_file(workspace: Workspace, name: str, segments: Sequence[Segment] | None = None) -> tuple[int, int]:
    """Bytes [first, stop) that consecutive segments have behind the header of a file; None: those of this process."""
    segments = workspace.plan.segments if segments is None else segments
    if name == snapshots.MEMORY_NAME:
        first, stop = workspace.memory.stretch_of(segments)
        return HEADER_BYTES + first, HEADER_BYTES + stop
    size = FLOAT_BYTES if name == snapshots.ANCHOR_NAME else FLOAT_BYTES * workspace.plan.num_slots
    return (size * segments[0].start, size * segments[-1].stop) if segments else (0, 0)


def held_here(workspace: Workspace, path: Path, size: int) -> tuple[int, int]:
    """Bytes [first, stop) of a file that the parts on this machine have. Raises StoreError."""
    plan, segments = workspace.plan, workspace.plan.segments_here
    if plan.part.has_all_here:
        return 0, size
    if not segments:
        return 0, 0
    offset, _, _ = read_header(path)
    first, stop = stretch_in_file(workspace, path.name, segments)
    is_last = segments[-1].index == plan.num_segments - 1
    return offset + first if segments[0].index else 0, size if is_last else offset + stop


def _data_offset(path: Path, expected: list[TensorEntry]) -> int:
    offset, entries, _ = read_header(path)
    if entries != expected or path.stat().st_size != offset + sum(entry.num_bytes for entry in entries):
        raise RequestFailed("corrupt_snapshot", f"{path} does not hold the parameters of this run")
    return offset


def _read_into(path: Path, offset: int, target: memoryview, workspace: Workspace) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        done = 0
        while done < target.nbytes:
            count = file.readinto(target[done : done + snapshots.CHUNK_BYTES])
            if not count:
                raise RequestFailed("corrupt_snapshot", f"{path} became shorter while it was read")
            done += count
            workspace.report.step(0)
