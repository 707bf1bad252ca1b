"""Which bytes of which file a request makes an outer part read or write, and where the node has them.

The head has every file whole; the node gets the bytes that its part looks at, at the same places of sparse files, and
keeps for itself only the part's own feedback file. Source: docs/adr/0035-a-site-on-several-machines.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import StoreError
from dilocoxd.outerworker.away.moves import Moves
from dilocoxd.outerworker.plan import HEADER_BYTES
from dilocoxd.outerworker.snapshot import held_here, stretch_in_file
from dilocoxd.outerworker.tensor_file import snapshot_files
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store import snapshots
from dilocoxd.store.tensor_header import encode_header, read_header
from dilocoxd.wire.local.node import KeepFiles
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    LoadState,
    RestoreSite,
    ReturnWork,
    SaveSite,
    Settle,
    SnapshotSaved,
    WriteSnapshot,
)

LOADED: Final = "loaded"
WRITTEN: Final = "written/snapshot"
RESULTS: Final = "results"
KEPT: Final = "kept"
FEEDBACK: Final = "feedback-"
"""How the names of the part's own feedback files begin; phase and content follow. The one that belongs to the head's
file stays until the head has the next one: who dies while all save has what the head has."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A file at the head, what it is called on the node, and the stretches that the node gets."""

    path: Path
    name: str
    stretches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Brought:
    """Bytes [first, stop) of a file of the node, and where the head has them."""

    name: str
    path: Path
    first: int
    stop: int


class Files:
    """Of one part."""

    def __init__(self, workspace: Workspace, moves: Moves, folder: Path) -> None:
        """`folder`: of the part, on the node."""
        self._workspace = workspace
        self._moves = moves
        self._folder = folder

    def replaced(self, request: Any) -> list[str]:
        """What must go on the node before this."""
        match request:
            case LoadState(is_check=True):
                return [LOADED]
            case WriteSnapshot():
                return [str(snapshots.temporary_directory(Path(WRITTEN)))]
            case _:
                return []

    def kept(self, request: Any) -> KeepFiles | None:
        """Which of several files is still of use on the node before this; None: this is not about them."""
        if not isinstance(request, SaveSite):
            return None
        name = _feedback_of(Path(request.path))
        return KeepFiles(FEEDBACK, (name,) if name else ())

    def sent(self, request: Any) -> Iterator[Sent]:
        """What the node gets before this. Raises OSError, StoreError."""
        match request:
            case LoadState(is_check=True) if request.directory:
                yield from self._of_snapshot(Path(request.directory))
            case ApplyResult(is_check=True):
                yield from self._results(request.path, request.offset, request.lowrank_r)
            case Settle() | RestoreSite():
                yield from self._results(self._results_path(request), request.offset, request.lowrank_r)
                yield from _whole(request.kept_path, KEPT)
            case ReturnWork(is_check=True):
                yield from _whole(request.path, KEPT)
            case _:
                return

    def named(self, request: Any) -> Any:
        """The request with the paths of the node."""
        match request:
            case LoadState() if request.directory:
                return dataclasses.replace(request, directory=self._there(LOADED))
            case WriteSnapshot():
                return dataclasses.replace(request, directory=self._there(WRITTEN))
            case ApplyResult() if request.path:
                return dataclasses.replace(request, path=self._there(RESULTS))
            case Settle():
                path, kept = request.path and self._there(RESULTS), request.kept_path and self._there(KEPT)
                return dataclasses.replace(request, path=path, kept_path=kept)
            case RestoreSite():
                results, kept = request.results_path and self._there(RESULTS), request.kept_path and self._there(KEPT)
                path = request.path and self._there(_feedback_of(Path(request.path)) or f"{FEEDBACK}none")
                return dataclasses.replace(request, path=path, results_path=results, kept_path=kept)
            case SaveSite():
                content = " ".join(f"{item.phase}:{item.times}" for item in request.content)
                return dataclasses.replace(request, path=self._there(_feedback_name(str(request.phase), content)))
            case ReturnWork():
                return dataclasses.replace(request, path=self._there(KEPT))
            case _:
                return request

    def brought(self, request: Any, answer: Any) -> list[Brought]:
        """What the head gets before it hears the answer: the part's stretches of a snapshot."""
        if not isinstance(answer, SnapshotSaved):
            return []
        plan = self._workspace.plan
        metadata = {"run_id": plan.run_id, "round": str(answer.round)}
        temporary = snapshots.temporary_directory(Path(request.directory))
        found = []
        for name, entries in snapshot_files(plan):
            front = len(encode_header(entries, metadata))
            first, stop = stretch_in_file(self._workspace, name)
            there = str(snapshots.temporary_directory(Path(WRITTEN)) / name)
            found.append(Brought(there, temporary / name, front + first, front + stop))
        return [each for each in found if each.first < each.stop]

    def answered(self, request: Any, answer: Any) -> Any:
        """The answer with the paths of the head."""
        return dataclasses.replace(answer, directory=request.directory) if isinstance(answer, SnapshotSaved) else answer

    def done_with(self, request: Any, answer: Any) -> list[str]:
        """What is of no more use on the node."""
        if isinstance(answer, SnapshotSaved):
            return self.replaced(request)
        return [LOADED] if isinstance(request, LoadState) and not request.is_check else []

    def _there(self, name: str) -> str:
        return str(self._folder / name)

    def _results_path(self, request: Settle | RestoreSite) -> str:
        return request.path if isinstance(request, Settle) else request.results_path

    def _results(self, path: str, offset: int, lowrank_r: int) -> Iterator[Sent]:
        if path and Path(path).exists():
            places = self._moves.payload_places(lowrank_r)
            yield Sent(Path(path), RESULTS, tuple((offset + first, offset + stop) for first, stop in places))

    def _of_snapshot(self, directory: Path) -> Iterator[Sent]:
        yield from _whole(str(directory / snapshots.INDEX_NAME), f"{LOADED}/{snapshots.INDEX_NAME}")
        for file in snapshots.read_index(directory).files:
            path = directory / file.name
            front, _, _ = read_header(path)
            if file.name == snapshots.MEMORY_NAME:
                front += HEADER_BYTES
            yield Sent(path, f"{LOADED}/{file.name}", ((0, front), held_here(self._workspace, path, file.size)))


def _whole(path: str, name: str) -> Iterator[Sent]:
    """A file that the part reads from end to end; without it the part says what it makes of that."""
    if path and Path(path).exists():
        yield Sent(Path(path), name, ((0, Path(path).stat().st_size),))


def _feedback_name(phase: str, content: str) -> str:
    """Of two files of one phase that differ in what they hold the names differ too."""
    return f"{FEEDBACK}{hashlib.sha256(f'{phase} {content}'.encode()).hexdigest()[:32]}.safetensors"


def _feedback_of(path: Path) -> str:
    """What the node calls the file that was saved together with the head's; empty if that is none."""
    try:
        metadata = read_header(path)[2]
        return _feedback_name(metadata["phase"], metadata["content"])
    except (OSError, StoreError, ValueError, KeyError):
        return ""
