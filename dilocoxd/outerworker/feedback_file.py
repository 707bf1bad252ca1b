"""Saves and restores what is this site's alone: error feedback and owner residuals (not part of the shared state).

A safetensors file with a hash of its data. It belongs to the last settled phase; a contribution that was in flight is
saved with its payload, so that either fate can still be honoured exactly.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from dilocoxd.errors import StoreError, WireError
from dilocoxd.outer.passes import SegmentPass, subtract_counted_
from dilocoxd.outerworker.buffers import tensor_bytes
from dilocoxd.outerworker.failure import RequestFailed, from_store
from dilocoxd.outerworker.journal import NO_PHASE, Update
from dilocoxd.outerworker.plan import FLOAT_BYTES
from dilocoxd.outerworker.results.counted import counted_in_log
from dilocoxd.outerworker.results.kept import open_kept
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store.durable import TEMPORARY_SUFFIX, Corrupt, SteadyWriter, fsync_directory, store_error
from dilocoxd.store.tensor_header import TensorEntry, encode_header, read_header
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import RestoreSite, SaveSite, SiteDone

FEEDBACK_NAME = "feedback"
OUTBOX_NAME = "outbox"
OWNER_PREFIX = "owner_feedback."
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor of the file: bytes [start, stop) of a buffer."""

    entry: TensorEntry
    buffer: str
    start: int
    stop: int


class SiteFile:
    """SaveSite and RestoreSite."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def save(self, request: SaveSite) -> SiteDone:
        """Write the file, atomically. Raises RequestFailed (disk_full)."""
        workspace = self._workspace
        workspace.require(workspace.state.operation == Update.NONE, "an update was interrupted; ask it again first")
        tensors = self._tensors()
        digest = hashlib.sha256()
        workspace.report.begin("save", len(tensors))
        for number, saved in enumerate(tensors):
            for piece in self._pieces(saved):
                digest.update(piece)
                workspace.report.step(number)
        metadata = {
            "plan_sha256": workspace.plan.sha256.hex(),
            "phase": str(request.phase),
            "in_flight": str(workspace.state.formed_phase),
            "content": " ".join(f"{item.phase}:{item.times}" for item in request.content),
            "sha256": digest.hexdigest(),
        }
        header = encode_header([saved.entry for saved in tensors], metadata)
        try:
            self._write(Path(request.path), header, tensors)
        except StoreError as error:
            raise from_store(error) from error
        return SiteDone(request.request, False, "")

    def _tensors(self) -> list[_Saved]:
        """Of all segments: one of several parts saves what all of them have."""
        plan, buffers = self._workspace.plan, self._workspace.buffers
        numel = plan.layout.numel
        tensors = [
            _Saved(TensorEntry(FEEDBACK_NAME, (numel,)), local_buffers.FEEDBACK, 0, FLOAT_BYTES * numel),
        ]
        for segment in plan.layout.segments:
            if buffers.has_owner_feedback(segment):
                entry = TensorEntry(f"{OWNER_PREFIX}{segment.index}", (segment.numel,))
                start, stop = FLOAT_BYTES * segment.start, FLOAT_BYTES * segment.stop
                tensors.append(_Saved(entry, local_buffers.OWNER_FEEDBACK, start, stop))
        if self._workspace.state.formed_phase != NO_PHASE:
            entry = TensorEntry(OUTBOX_NAME, (plan.payload_total,), "U8")
            tensors.append(_Saved(entry, local_buffers.OUTBOX, 0, plan.payload_total))
        return tensors

    def _pieces(self, saved: _Saved) -> Iterator[memoryview | bytes]:
        for start in range(saved.start, saved.stop, _PIECE_BYTES):
            yield self._workspace.buffers.look_at(saved.buffer, start, min(start + _PIECE_BYTES, saved.stop))

    def _write(self, path: Path, header: bytes, tensors: list[_Saved]) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                writer = SteadyWriter(fd)
                offset = writer.write(header, 0)
                for saved in tensors:
                    for piece in self._pieces(saved):
                        offset = writer.write(piece, offset)
                        self._workspace.report.step(0)
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.replace(path)
            fsync_directory(path.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise store_error("saving the error feedback", path, error) from error

    def restore(self, request: RestoreSite) -> SiteDone:
        """Load the file if it belongs to `phase`, else start from zero; `detail` says why."""
        workspace = self._workspace
        workspace.buffers.clear(local_buffers.FEEDBACK)
        workspace.buffers.clear(local_buffers.OWNER_FEEDBACK)
        workspace.journal.write(operation=Update.NONE, formed_phase=NO_PHASE)
        try:
            detail = self._load(Path(request.path), request)
        except FileNotFoundError:
            detail = "no file"
        except (OSError, StoreError, WireError) as error:
            detail = str(error)
        except RequestFailed as failed:
            detail = failed.detail
        if detail:
            workspace.buffers.clear(local_buffers.FEEDBACK)
            workspace.buffers.clear(local_buffers.OWNER_FEEDBACK)
        return SiteDone(request.request, not detail, detail[:4000])

    def _load(self, path: Path, request: RestoreSite) -> str:
        """Fill the buffers; returns why not, or nothing. Raises OSError, StoreError, WireError, RequestFailed."""
        workspace = self._workspace
        offset, entries, metadata = read_header(path)
        if metadata.get("plan_sha256") != workspace.plan.sha256.hex():
            return "the file belongs to another run"
        settled, in_flight = int(metadata.get("phase", "-1")), int(metadata.get("in_flight", "-1"))
        if request.phase not in (settled, in_flight):
            return f"the file belongs to phase {settled}, wanted is {request.phase}"
        self._check(path, entries)
        digest = hashlib.sha256()
        workspace.report.begin("restore", len(entries))
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            for number, entry in enumerate(entries):
                for piece in self._fill(file, entry):
                    digest.update(piece)
                    workspace.report.step(number)
        if digest.hexdigest() != metadata.get("sha256"):
            raise Corrupt(f"{path}: damaged (sha256 differs)")
        is_included = in_flight != NO_PHASE and request.phase == in_flight
        if not is_included:
            return ""
        try:
            return self._give_up_counted(request)
        except FileNotFoundError as error:
            return f"what its entry counted is gone meanwhile: {error}"

    def _fill(self, file: FileIO, entry: TensorEntry) -> Iterator[memoryview]:
        """Read a tensor to where it belongs, as far as this process holds it; gives all of its bytes."""
        target, (first, last) = self._target(entry), self._held(entry)
        for start in range(0, target.nbytes, _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            stop = start + piece.nbytes
            is_held = first <= start and stop <= last
            into = piece if is_held else memoryview(bytearray(piece.nbytes))
            if file.readinto(into) != into.nbytes:
                raise Corrupt(f"{file.name!r}: cut off")
            low, high = max(start, first), min(stop, last)
            if not is_held and low < high:
                target[low:high] = into[low - start : high - start]
            yield into

    def _held(self, entry: TensorEntry) -> tuple[int, int]:
        """Bytes of a tensor that belong to segments of this process. All parts fill OUTBOX, with the same bytes."""
        plan = self._workspace.plan
        if entry.name == FEEDBACK_NAME:
            first, last = plan.stretch
            return FLOAT_BYTES * first, FLOAT_BYTES * last
        is_held = entry.name == OUTBOX_NAME or plan.holds(int(entry.name.removeprefix(OWNER_PREFIX)))
        return 0, entry.num_bytes if is_held else 0

    def _give_up_counted(self, request: RestoreSite) -> str:
        """It was in flight and the chain names it: FEEDBACK <- d - counted, with the steps of Settle (outer/passes.py).

        Returns why not, or nothing. Raises OSError, StoreError, WireError, RequestFailed.
        """
        workspace, plan = self._workspace, self._workspace.plan
        is_kept = bool(request.kept_path) and Path(request.kept_path).exists()
        if plan.feedback.mode != "local" or (plan.num_passes > 1 and not is_kept):
            return "a contribution was in flight that was included; what it left is unknown"
        workspace.report.begin("settle restored", len(plan.segments))
        if not is_kept:
            with counted_in_log(workspace, request) as counted:
                for segment in plan.segments:
                    own = workspace.buffers.outbox(0, segment.index)
                    at = SegmentPass(plan.transform, 0, segment)
                    subtract_counted_(at, own, workspace.feedback_of(segment), *counted(segment))
                    workspace.report.step(segment.index)
            return ""
        try:
            with open_kept(workspace, Path(request.kept_path), request.phase) as kept:
                plan.transform.tune(kept.round, kept.lowrank_r)
                for segment in plan.segments:
                    e = workspace.feedback_of(segment)
                    at, factor, center = kept.at(segment), kept.factor(segment), kept.center(segment)
                    subtract_counted_(at, kept.own(segment), e, factor, center)
                    workspace.report.step(segment.index)
        finally:
            if workspace.state.is_loaded:
                workspace.tune()
        return ""

    def _check(self, path: Path, entries: list[TensorEntry]) -> None:
        for entry in entries:
            try:
                fits = self._target(entry).nbytes == entry.num_bytes
            except (ValueError, IndexError, KeyError):
                fits = False
            if not fits:
                raise Corrupt(f"{path}: tensor {entry.name} does not belong here")

    def _target(self, entry: TensorEntry) -> memoryview:
        workspace = self._workspace
        if entry.name == FEEDBACK_NAME:
            return tensor_bytes(workspace.buffers.feedback)
        if entry.name == OUTBOX_NAME:
            return workspace.buffers.outbox_bytes()
        segment = workspace.plan.layout.segments[int(entry.name.removeprefix(OWNER_PREFIX))]
        return tensor_bytes(workspace.owner_feedback_of(segment))
