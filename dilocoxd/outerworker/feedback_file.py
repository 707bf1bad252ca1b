"""Saves and restores what is this site's alone: error feedback and owner residuals (not part of the shared state).

A safetensors file with a hash of its data. It belongs to the last settled phase; a contribution that was in flight is
saved with its payload, so that either fate can still be honoured exactly.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.errors import StoreError
from dilocoxd.ids import PhaseId
from dilocoxd.outerworker.buffers import tensor_bytes
from dilocoxd.outerworker.core import Core
from dilocoxd.outerworker.failure import from_store
from dilocoxd.outerworker.journal import NO_PHASE, Operation
from dilocoxd.outerworker.tensor_file import TensorEntry, encode_header, read_header
from dilocoxd.store.durable import TEMPORARY_SUFFIX, Corrupt, SteadyWriter, fsync_directory, store_error
from dilocoxd.wire import local
from dilocoxd.wire.local import RestoreSite, SaveSite, SiteDone

FEEDBACK_NAME = "feedback"
OUTBOX_NAME = "outbox"
OWNER_PREFIX = "owner_feedback."
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    entry: TensorEntry
    data: memoryview


class SiteFile:
    """SaveSite and RestoreSite."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._returned: tuple[PhaseId, ...] = ()

    def save(self, request: SaveSite) -> SiteDone:
        """Write the file, atomically. Raises RequestFailed (disk_full)."""
        core = self._core
        core.require(core.state.operation == Operation.NONE, "an update was interrupted; ask it again first")
        parts = self._parts()
        digest = hashlib.sha256()
        core.report.begin("save", len(parts))
        for number, part in enumerate(parts):
            for piece in _pieces(part.data):
                digest.update(piece)
                core.report.step(number)
        metadata = {
            "plan_sha256": core.plan.sha256.hex(),
            "phase": str(request.phase),
            "in_flight": str(core.state.formed_phase),
            "returned": " ".join(map(str, request.returned)),
            "sha256": digest.hexdigest(),
        }
        header = encode_header([part.entry for part in parts], metadata)
        try:
            self._write(Path(request.path), header, parts)
        except StoreError as error:
            raise from_store(error) from error
        return SiteDone(request.request, False, "")

    def _parts(self) -> list[_Part]:
        core = self._core
        parts = [_Part(TensorEntry(FEEDBACK_NAME, (core.plan.layout.numel,)), tensor_bytes(core.buffers.feedback))]
        for segment in core.plan.segments:
            if core.buffers.has_owner_feedback(segment):
                owner = core.owner_feedback_of(segment)
                parts.append(
                    _Part(TensorEntry(f"{OWNER_PREFIX}{segment.index}", (segment.numel,)), tensor_bytes(owner))
                )
        if core.state.formed_phase != NO_PHASE:
            payload = core.buffers.outbox_bytes()
            parts.append(_Part(TensorEntry(OUTBOX_NAME, (payload.nbytes,), "U8"), payload))
        return parts

    def _write(self, path: Path, header: bytes, parts: list[_Part]) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                writer = SteadyWriter(fd)
                offset = writer.write(header, 0)
                for part in parts:
                    for piece in _pieces(part.data):
                        offset = writer.write(piece, offset)
                        self._core.report.step(0)
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
        core = self._core
        core.buffers.clear(local.FEEDBACK)
        core.buffers.clear(local.OWNER_FEEDBACK)
        core.journal.write(operation=Operation.NONE, formed_phase=NO_PHASE)
        self._returned = ()
        try:
            detail = self._load(Path(request.path), request.phase)
        except FileNotFoundError:
            detail = "no file"
        except (OSError, Corrupt) as error:
            detail = str(error)
        if detail:
            core.buffers.clear(local.FEEDBACK)
            core.buffers.clear(local.OWNER_FEEDBACK)
        return SiteDone(request.request, not detail, detail[:4000], () if detail else self._returned)

    def _load(self, path: Path, phase: int) -> str:
        """Fill the buffers; returns why not, or nothing. Raises Corrupt and OSError."""
        core = self._core
        offset, entries, metadata = read_header(path)
        if metadata.get("plan_sha256") != core.plan.sha256.hex():
            return "the file belongs to another run"
        settled, in_flight = int(metadata.get("phase", "-1")), int(metadata.get("in_flight", "-1"))
        self._returned = tuple(PhaseId(int(text)) for text in metadata.get("returned", "").split())
        if phase not in (settled, in_flight):
            return f"the file belongs to phase {settled}, wanted is {phase}"
        self._check(path, entries)
        digest = hashlib.sha256()
        core.report.begin("restore", len(entries))
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            for number, entry in enumerate(entries):
                for piece in _pieces(self._target(entry)):
                    count = file.readinto(piece)
                    if count != piece.nbytes:
                        raise Corrupt(f"{path}: cut off")
                    digest.update(piece)
                    core.report.step(number)
        if digest.hexdigest() != metadata.get("sha256"):
            raise Corrupt(f"{path}: damaged (sha256 differs)")
        if in_flight != NO_PHASE and phase == in_flight:
            # It was in flight and the chain names it: what the others got is no longer owed.
            if core.plan.num_passes > 1 or core.plan.feedback.mode != "local":
                return "a contribution was in flight that was included; what it left is unknown"
            for segment in core.plan.segments:
                own = core.buffers.outbox(0, segment.index)
                core.plan.transform.subtract_expanded_(segment, own, (), core.feedback_of(segment))
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
        core = self._core
        if entry.name == FEEDBACK_NAME:
            return tensor_bytes(core.buffers.feedback)
        if entry.name == OUTBOX_NAME:
            return core.buffers.outbox_bytes()
        segment = core.plan.segments[int(entry.name.removeprefix(OWNER_PREFIX))]
        return tensor_bytes(core.owner_feedback_of(segment))


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, data.nbytes, _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
