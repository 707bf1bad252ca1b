"""Saves and restores what is this site's alone: error feedback and owner residuals (not part of the shared state).

A safetensors file with a hash of its data. It belongs to the last settled phase; a contribution that was in flight is
saved with its payload, so that either fate can still be honoured exactly. On one of several machines it has holes where
others hold the segments (docs/adr/0035-a-site-on-several-machines.md): `held` in its metadata says what is there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
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
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import RestoreSite, SaveSite, SiteDone

FEEDBACK_NAME = "feedback"
OUTBOX_NAME = "outbox"
OWNER_PREFIX = "owner_feedback."
HELD = "held"
_PIECE_BYTES = 4 << 20
Stretches = tuple[tuple[int, int], ...]
"""Bytes [first, stop) of a tensor, ascending."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor of the file: bytes of a buffer from `start` on. Some may be saved by another machine."""

    entry: TensorEntry
    buffer: str
    start: int
    stretches: Stretches

    @property
    def is_whole(self) -> bool:
        return self.stretches == _all_of(self.entry)


def _all_of(entry: TensorEntry) -> Stretches:
    return ((0, entry.num_bytes),)


def _pieces_of(stretches: Stretches) -> Iterator[tuple[int, int]]:
    for first, stop in stretches:
        for start in range(first, stop, _PIECE_BYTES):
            yield start, min(start + _PIECE_BYTES, stop)


class SiteFile:
    """SaveSite and RestoreSite."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._covered: tuple[Segment, ...] = ()
        """Segments of this process whose feedback the file being restored has."""

    def save(self, request: SaveSite) -> SiteDone:
        """Write the file, atomically. Raises RequestFailed (disk_full)."""
        workspace = self._workspace
        workspace.require(workspace.state.operation == Update.NONE, "an update was interrupted; ask it again first")
        tensors = self._tensors()
        digest = hashlib.sha256()
        workspace.report.begin("save", len(tensors))
        for number, saved in enumerate(tensors):
            for _, piece in self._pieces(saved):
                digest.update(piece)
                workspace.report.step(number)
        metadata = {
            "plan_sha256": workspace.plan.sha256.hex(),
            "phase": str(request.phase),
            "in_flight": str(workspace.state.formed_phase),
            "content": " ".join(f"{item.phase}:{item.times}" for item in request.content),
            "sha256": digest.hexdigest(),
        }
        held = {saved.entry.name: saved.stretches for saved in tensors if not saved.is_whole}
        if held:
            metadata[HELD] = json.dumps(held)
        header = encode_header([saved.entry for saved in tensors], metadata)
        try:
            self._write(Path(request.path), header, tensors)
        except StoreError as error:
            raise from_store(error) from error
        return SiteDone(request.request, False, "")

    def _tensors(self) -> list[_Saved]:
        """One of several parts saves what all on its machine have."""
        plan, buffers = self._workspace.plan, self._workspace.buffers
        segments = plan.segments_here
        entry = TensorEntry(FEEDBACK_NAME, (plan.layout.numel,))
        own: Stretches = ((FLOAT_BYTES * segments[0].start, FLOAT_BYTES * segments[-1].stop),) if segments else ()
        tensors = [_Saved(entry, local_buffers.FEEDBACK, 0, own)]
        for segment in segments:
            if buffers.has_owner_feedback(segment):
                entry = TensorEntry(f"{OWNER_PREFIX}{segment.index}", (segment.numel,))
                start = FLOAT_BYTES * segment.start
                tensors.append(_Saved(entry, local_buffers.OWNER_FEEDBACK, start, _all_of(entry)))
        if self._workspace.state.formed_phase != NO_PHASE:
            entry = TensorEntry(OUTBOX_NAME, (plan.payload_total,), "U8")
            stretches = _all_of(entry) if plan.part.has_all_here else tuple(buffers.payload_stretches(segments))
            tensors.append(_Saved(entry, local_buffers.OUTBOX, 0, stretches))
        return tensors

    def _pieces(self, saved: _Saved) -> Iterator[tuple[int, memoryview | bytes]]:
        """Each with its place in the tensor."""
        for first, stop in _pieces_of(saved.stretches):
            yield first, self._workspace.buffers.look_at(saved.buffer, saved.start + first, saved.start + stop)

    def _write(self, path: Path, header: bytes, tensors: list[_Saved]) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                writer = SteadyWriter(fd)
                offset = writer.write(header, 0)
                for saved in tensors:
                    for place, piece in self._pieces(saved):
                        writer.write(piece, offset + place)
                        self._workspace.report.step(0)
                    offset += saved.entry.num_bytes
                os.ftruncate(fd, offset)
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
        workspace, self._covered = self._workspace, ()
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
            self._covered = ()
            workspace.buffers.clear(local_buffers.FEEDBACK)
            workspace.buffers.clear(local_buffers.OWNER_FEEDBACK)
        missing = _numel(workspace.plan.segments) - _numel(self._covered)
        return SiteDone(request.request, not detail, detail[:4000], missing)

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
        held = _held(path, entries, metadata)
        digest = hashlib.sha256()
        workspace.report.begin("restore", len(entries))
        starts = itertools.accumulate((entry.num_bytes for entry in entries), initial=offset)
        with path.open("rb", buffering=0) as file:
            for number, (entry, start) in enumerate(zip(entries, starts, strict=False)):
                for piece in self._fill(file, entry, start, held[entry.name]):
                    digest.update(piece)
                    workspace.report.step(number)
        if digest.hexdigest() != metadata.get("sha256"):
            raise Corrupt(f"{path}: damaged (sha256 differs)")
        stretches = held.get(FEEDBACK_NAME, ())
        self._covered = tuple(s for s in workspace.plan.segments if _is_within(s, stretches))
        is_included = in_flight != NO_PHASE and request.phase == in_flight
        if not is_included:
            return ""
        try:
            return self._give_up_counted(request)
        except FileNotFoundError as error:
            return f"what its entry counted is gone meanwhile: {error}"

    def _fill(self, file: FileIO, entry: TensorEntry, offset: int, stretches: Stretches) -> Iterator[memoryview]:
        """Read a tensor to where it belongs, as far as this process holds it; gives all bytes that the file has."""
        target, (first, last) = self._target(entry), self._held(entry)
        for start, stop in _pieces_of(stretches):
            piece = target[start:stop]
            file.seek(offset + start)
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
        workspace.report.begin("settle restored", len(self._covered))
        if not is_kept:
            with counted_in_log(workspace, request) as counted:
                for segment in self._covered:
                    own = workspace.buffers.outbox(0, segment.index)
                    at = SegmentPass(plan.transform, 0, segment)
                    subtract_counted_(at, own, workspace.feedback_of(segment), *counted(segment))
                    workspace.report.step(segment.index)
            return ""
        try:
            with open_kept(workspace, Path(request.kept_path), request.phase) as kept:
                plan.transform.tune(kept.round, kept.lowrank_r)
                for segment in self._covered:
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


def _held(path: Path, entries: list[TensorEntry], metadata: dict[str, str]) -> dict[str, Stretches]:
    """What the file has of each tensor. Raises Corrupt."""
    try:
        table = json.loads(metadata.get(HELD, "{}"))
        told = {name: tuple((int(first), int(stop)) for first, stop in found) for name, found in table.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path}: it does not say what it holds ({error})") from error
    held = {entry.name: told.get(entry.name, _all_of(entry)) for entry in entries}
    for entry in entries:
        places = [0, *itertools.chain.from_iterable(held[entry.name]), entry.num_bytes]
        if places != sorted(places):
            raise Corrupt(f"{path}: it says that it holds what tensor {entry.name} does not have")
    return held


def _numel(segments: Iterable[Segment]) -> int:
    return sum(segment.numel for segment in segments)


def _is_within(segment: Segment, stretches: Stretches) -> bool:
    first, stop = FLOAT_BYTES * segment.start, FLOAT_BYTES * segment.stop
    return any(a <= first and stop <= b for a, b in stretches)
