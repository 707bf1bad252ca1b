"""The site's own inner state on disk: the optimizer's moments and the place in the data, under global names.

``<directory>/<global step>/stage-<k>-of-<n>.safetensors``; a set counts when all n files are there. Parameters are not
in it: they come from the anchor. Each rank writes what lies on it, whole tensors or some of their rows and columns, and
says which. So a site that starts in another layout, with other stages or shards, still reads the set: each rank takes
what it holds now from whatever files have it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dilocoxd.errors import WorkerError
from dilocoxd.store.durable import fsync_directory
from dilocoxd.trainer.parallel.local import Extent, extent_of, local
from dilocoxd.trainer.parameters.copies import PLAIN, PlainCopies

log = logging.getLogger(__name__)

_KEEP: Final = 2
_META_KEY, _ROWS_KEY, _COLUMNS_KEY = _META_KEYS = ("dilocoxd", "first_rows", "first_columns")
_ADAMW_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_MUON_MOMENTS: Final = ("momentum_buffer",)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far this site's own training is; saved and restored with the moments."""

    global_step: int = 0
    """Inner steps of this site so far."""
    optimizer_step: int = 0
    """Steps behind the moments."""
    position: int = 0
    """Sequences read from the site's data order."""
    shared_step: int = 0
    """Place on the run's learning rate schedule."""
    own_position: int = 0
    """Sequences read from private stores, where others are shared."""


class CheckpointWriter:
    """Writes one rank's files in the background; a boundary that comes while it is still writing is left out."""

    def __init__(self, number: int, num_files: int) -> None:
        """`number` of the `num_files` files that make a set."""
        self._name = _file_name(number, num_files)
        self._is_pruner = number == 0
        self._thread: threading.Thread | None = None
        self.deliver: Callable[[int, Path], None] = lambda step, path: None
        """Called with the step and each file that is on disk, by the thread that wrote it. May raise WorkerError."""
        self.error: str = ""
        """Why the last write failed; empty if it did not. Training goes on without checkpoints."""

    @property
    def is_busy(self) -> bool:
        """Whether the one before is still being written: then nothing needs to be copied for the next."""
        return self._thread is not None and self._thread.is_alive()

    def write(
        self,
        directory: Path,
        progress: Progress,
        moments: Mapping[str, Tensor],
        pieces: Mapping[str, Extent] = MappingProxyType({}),
    ) -> bool:
        """Start writing ``moments`` (already copies); False if the one before is not done yet.

        ``pieces``: which rows and columns they are; what it does not name is whole.
        """
        if self.is_busy:
            return False
        named = {key: pieces[key] for key in moments if key in pieces}
        rows = {key: piece.first_row for key, piece in named.items()}
        columns = {key: piece.first_column for key, piece in named.items() if piece.columns < piece.width}
        meta = json.dumps(asdict(progress)), json.dumps(rows), json.dumps(columns)
        arguments = (directory, progress, dict(moments), meta)
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()
        return True

    def finish(self) -> None:
        """Wait until what was started is on disk."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, directory: Path, progress: Progress, moments: dict[str, Tensor], meta: tuple[str, ...]) -> None:
        folder = directory / f"{progress.global_step:012d}"
        temporary = folder / f".{self._name}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(moments, temporary, metadata=dict(zip(_META_KEYS, meta, strict=True)))
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.rename(folder / self._name)
            fsync_directory(folder)
            self.deliver(progress.global_step, folder / self._name)
            if self._is_pruner:
                fsync_directory(directory)
                _prune(directory)
            self.error = ""
        except (OSError, SafetensorError, WorkerError) as error:
            self.error = f"checkpoint in {directory}: {error}"
            log.warning("no checkpoint of step %d, training goes on: %s", progress.global_step, self.error)
            take_back(temporary)


def take_back(temporary: Path) -> None:
    """Remove what became no file of a checkpoint: on a full disk each boundary would leave one more."""
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        temporary.parent.rmdir()  # unless files of other ranks are in it


def newest_complete(directory: Path) -> Path | None:
    """Folder of the newest complete set, or None."""
    complete = [folder for folder in _folders(directory) if _is_complete(folder)]
    return complete[-1] if complete else None


def read_moments(folder: Path, pieces: Mapping[str, Extent]) -> tuple[Progress, dict[str, Tensor]] | None:
    """Progress and what ``pieces`` (`moment_pieces`) names; None if the set does not fit or is damaged.

    A set of another inner optimizer does not fit: it has other moments.
    """
    for num_files in _complete_counts(folder):
        found = _read_set([folder / _file_name(number, num_files) for number in range(num_files)], pieces)
        if found is not None:
            return found
    return None


def _read_set(paths: Iterable[Path], pieces: Mapping[str, Extent]) -> tuple[Progress, dict[str, Tensor]] | None:
    gathered = {key: _Gathered(piece) for key, piece in pieces.items()}
    progress: Progress | None = None
    try:
        for path in paths:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata()
                progress = Progress(**json.loads(meta[_META_KEY]))
                rows, columns = (json.loads(meta.get(name, "{}")) for name in (_ROWS_KEY, _COLUMNS_KEY))
                for key in gathered.keys() & set(file.keys()):
                    gathered[key].take(file.get_slice(key), int(rows.get(key, 0)), columns.get(key))
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if progress is None or not all(one.is_complete for one in gathered.values()):
        return None
    return progress, {key: one.values for key, one in gathered.items()}


class _Gathered:
    """A block of one tensor, put together from files."""

    def __init__(self, wanted: Extent) -> None:
        self.values = torch.empty(wanted.shape)
        self._wanted = wanted
        self._num_saved = self._num_read = 0

    def take(self, saved: Any, first_row: int, first_column: int | None) -> None:
        """What of `saved` (a slice of safetensors) we want. It begins at this row, and holds whole rows if there is no
        first column. Raises ValueError."""
        shape, wanted = tuple(saved.get_shape()), self._wanted
        has_columns = first_column is not None and len(shape) == 2
        if len(shape) != len(wanted.whole) or (shape[1:] != wanted.whole[1:] and not has_columns):
            raise ValueError(f"saved {shape}, wanted {wanted.whole}")
        self._num_saved += math.prod(shape)
        if not shape:
            self.values.copy_(saved[...])
            self._num_read = 1
            return
        rows = _common(wanted.first_row, wanted.rows, first_row, shape[0])
        if rows is None:
            return
        here: tuple[slice, ...] = (rows[0],)
        there: tuple[slice, ...] = (rows[1],)
        if has_columns or wanted.columns < wanted.width:
            columns = _common(wanted.first_column, wanted.columns, first_column or 0, shape[1])
            if columns is None:
                return
            here, there = (*here, columns[0]), (*there, columns[1])
        self.values[here] = saved[there]
        self._num_read += self.values[here].numel()

    @property
    def is_complete(self) -> bool:
        """Whether the files have the whole tensor, and we all of ours."""
        return self._num_saved == math.prod(self._wanted.whole) and self._num_read == self.values.numel()


def _common(first: int, count: int, other: int, other_count: int) -> tuple[slice, slice] | None:
    """What two stretches have in common, as places in each; None: nothing."""
    start, stop = max(first, other), min(first + count, other + other_count)
    return (slice(start - first, stop - first), slice(start - other, stop - other)) if start < stop else None


def copy_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], copies: PlainCopies = PLAIN
) -> dict[str, Tensor]:
    """Copies on the CPU of what of the moments lies here, as "<parameter>.exp_avg" and so on; nothing of parameters not
    stepped yet."""
    parts = {
        f"{name}.{moment}": local(optimizer.state[param][moment])
        for name, param in parameters.items()
        if param in optimizer.state
        for moment in _moments_of(optimizer)
    }
    found = {key: torch.empty(part.shape) for key, part in parts.items() if part.numel()}
    copies.download(((here, parts[key]) for key, here in found.items()), Tensor.copy_)
    return found


def moment_pieces(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Extent]:
    """Names and places of what `copy_moments` gives."""
    return {
        f"{name}.{moment}": extent_of(param) for name, param in parameters.items() for moment in _moments_of(optimizer)
    }


def _moments_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    return _MUON_MOMENTS if isinstance(optimizer, torch.optim.Muon) else _ADAMW_MOMENTS


def load_moments(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    moments: Mapping[str, Tensor],
    optimizer_step: int,
) -> None:
    """Put moments back into the optimizer."""
    names = _moments_of(optimizer)
    for name, param in parameters.items():
        state = {moment: torch.zeros_like(param, requires_grad=False) for moment in names}
        for moment, value in state.items():
            local(value).copy_(moments[f"{name}.{moment}"])
        if names == _ADAMW_MOMENTS:
            state["step"] = torch.tensor(float(optimizer_step), dtype=torch.float32, device=param.device)
        optimizer.state[param] = state


def _folders(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and path.name.isdecimal())
    except OSError:
        return []


def _is_complete(folder: Path) -> bool:
    return bool(_complete_counts(folder))


def _complete_counts(folder: Path) -> list[int]:
    """Numbers of files of the sets that are complete: a site whose layout changed may have left two."""
    names = {path.name for path in folder.glob("stage-*-of-*.safetensors")}
    counts = {int(name.removesuffix(".safetensors").rsplit("-", 1)[1]) for name in names}
    return sorted(n for n in counts if all(_file_name(k, n) in names for k in range(n)))


def _file_name(number: int, num_files: int) -> str:
    return f"stage-{number}-of-{num_files}.safetensors"


def _prune(directory: Path) -> None:
    complete = [folder for folder in _folders(directory) if _is_complete(folder)]
    keep_from = complete[-_KEEP] if len(complete) >= _KEEP else None
    for folder in _folders(directory):
        if keep_from is not None and folder < keep_from:
            shutil.rmtree(folder, ignore_errors=True)
